// Is this a report of schema 1? Checked manually against a table, with limits, before any renderer or tool
// believes it.
#include <cmath>
#include <initializer_list>
#include <string_view>

#include "show/read.h"
#include "show/show.h"

namespace finitude::show {
namespace {

constexpr std::size_t kMaxText = 1 << 20;
constexpr int kMaxDepth = 32;
constexpr std::size_t kMaxItems = 10'000'000;

// What a value may be.
enum Kind : unsigned {
  kText = 1,
  kCount = 2,
  kNumber = 4,
  kReal = 8,
  kBool = 16,
  kNull = 32,
  kArray = 64,
  kObject = 128,
  kInteger = 256
};

struct Shape;
struct Field {
  const char* key;
  unsigned kinds;
  bool required = false;
  std::string_view words = {};   // a text must be one of these, separated by '|'
  const Shape* shape = nullptr;  // of the object, or of every object in the array
  unsigned items = 0;            // kinds of the array's items, where they are no objects
  std::size_t max_items = kMaxItems;
};
struct Shape {
  std::initializer_list<Field> fields;
};

constexpr unsigned kTextOrNull = kText | kNull, kCountOrNull = kCount | kNull;

const Shape kExponents{{{"first", kInteger, true}, {"counts", kArray, true, {}, nullptr, kCount, 2098}}};
const Shape kStatistics{{{"arg", kTextOrNull},
                         {"shape", kArray, true, {}, nullptr, kCount, 64},
                         {"dtype", kText, true},
                         {"min", kReal},
                         {"max", kReal},
                         {"absmax", kReal},
                         {"mean", kReal},
                         {"nan", kCount, true},
                         {"inf", kCount, true},
                         {"pos_inf", kCount},
                         {"neg_inf", kCount},
                         {"zero", kCount},
                         {"subnormal", kCount},
                         {"numel", kCount, true},
                         {"rows", kArray, false, {}, nullptr, kCount},
                         {"text", kTextOrNull},
                         {"sum_sq", kReal},
                         {"constant", kBool},
                         {"checksum", kText},
                         {"values", kText},
                         {"full_shape", kArray, false, {}, nullptr, kCount, 64},
                         {"begins", kArray, false, {}, nullptr, kCount, 64},
                         {"is_partial", kBool},
                         {"storage", kCount},
                         {"begin", kCount},
                         {"end", kCount},
                         {"exponents", kObject, false, {}, &kExponents}}};
const Shape kPlace{{{"op", kTextOrNull, true},
                    {"file", kTextOrNull},
                    {"line", kCountOrNull},
                    {"source", kTextOrNull},
                    {"module", kTextOrNull},
                    {"text", kTextOrNull},
                    {"inputs", kArray, false, {}, &kStatistics}}};
const Shape kScalar{{{"arg", kTextOrNull}, {"text", kText, true}}};
const Shape kDatum{{{"how", kText, true, "stored|made|read|unknown"},
                    {"text", kText, true},
                    {"sample", kCount},
                    {"field", kText},
                    {"file", kText},
                    {"line", kCount},
                    {"function", kText},
                    {"source", kText}}};
const Shape kUserFrame{
    {{"file", kText, true}, {"line", kCount, true}, {"source", kTextOrNull}, {"function", kTextOrNull}}};
const Shape kAround{{{"first", kCount, true}, {"source", kText, true}}};
const Shape kSink{{{"kind", kText, true, "loss|gradient|parameter|state|buffer"}, {"name", kTextOrNull, true}}};
const Shape kExchange{
    {{"group", kText, true}, {"number", kCount}, {"root", kCount}, {"ranks", kArray, false, {}, nullptr, kCount}}};
const Shape kBirth{{{"phase", kText, true, "forward|backward|optimizer|data|state|communication|memory"},
                    {"op", kTextOrNull, true},
                    {"file", kTextOrNull, true},
                    {"line", kCountOrNull, true},
                    {"source", kTextOrNull},
                    {"expression", kText},
                    {"module", kTextOrNull},
                    {"node", kTextOrNull},
                    {"forward", kObject | kNull, false, {}, &kPlace},
                    {"name", kTextOrNull},
                    {"user_frame", kObject | kNull, false, {}, &kUserFrame},
                    {"absorbed_by", kObject | kNull, false, {}, &kPlace},
                    {"scalars", kArray, false, {}, &kScalar},
                    {"inputs", kArray, false, {}, &kStatistics},
                    {"outputs", kArray, false, {}, &kStatistics},
                    {"rows", kArray, false, {}, nullptr, kCount},
                    {"rows_of", kCount},
                    {"rows_in", kText, false, "batch|output"},
                    {"rows_are_samples", kBool},
                    {"samples", kArray, false, {}, nullptr, kCount},
                    {"datum", kObject, false, {}, &kDatum},
                    {"sink", kObject, false, {}, &kSink},
                    {"exchanges", kArray, false, {}, &kExchange},
                    {"around", kObject, false, {}, &kAround}}};
const Shape kOnset{{{"quantity", kText, true, "loss|gradient|learning-rate"},
                    {"step", kCount, true},
                    {"at_most", kBool},
                    {"steps", kCount, true},
                    {"from", kReal, true},
                    {"to", kReal, true},
                    {"factor_per_step", kReal, true}}};
const Shape kExperiment{{{"name", kText, true},
                         {"outcome", kText, true},
                         {"confirms", kBool},
                         {"rows", kArray, false, {}, nullptr, kCount},
                         {"rows_of", kCount},
                         {"samples", kArray, false, {}, nullptr, kCount}}};
const Shape kCause{{{"class", kText, true},
                    {"confidence", kText, true, "proven|likely|possible"},
                    {"text", kText, true},
                    {"experiments", kArray, false, {}, &kExperiment},
                    {"tried_seconds", kReal},
                    {"budget_seconds", kReal},
                    {"out_of_time", kBool},
                    {"rule", kText},
                    {"onsets", kArray, false, {}, &kOnset}}};
const Shape kFix{{{"text", kText, true},
                  {"verified", kBool, true},
                  {"outcome", kTextOrNull},
                  {"tried", kTextOrNull},
                  {"diff", kTextOrNull},
                  {"file", kTextOrNull},
                  {"line", kCountOrNull}}};
const Shape kBadGradient{
    {{"name", kText, true}, {"nan", kCount, true}, {"inf", kCount, true}, {"numel", kCount, true}}};
const Shape kGradients{{{"bad", kArray, true, {}, &kBadGradient}, {"clean", kCount, true}}};
const Shape kBuffer{{{"name", kText, true},
                     {"nan", kCount, true},
                     {"inf", kCount, true},
                     {"numel", kCount, true},
                     {"put_back", kBool, true}}};
const Shape kHistory{{{"loss", kArray, false, {}, nullptr, kReal}, {"grad_absmax", kArray, false, {}, nullptr, kReal}}};
const Shape kLastGood{{{"checkpoint", kText, true}, {"step", kCountOrNull, true}}};
const Shape kAlarmOnset{
    {{"step", kCount, true}, {"name", kText, true}, {"rate", kReal, true}, {"lr", kReal, true}, {"text", kText, true}}};
const Shape kAlarm{{{"step", kCount, true},
                    {"micro_batch", kCountOrNull},
                    {"rank", kCount},
                    {"host", kText},
                    {"optimizer", kTextOrNull},
                    {"sink", kObject, true, {}, &kSink},
                    {"loss", kObject | kReal, false, {}, &kStatistics},
                    {"text", kText},
                    {"harmless", kBool},
                    {"policy", kText, false, "stop|skip|warn|raise|rollback"},
                    {"level", kText, false, "gate|tape|trace"},
                    {"action", kText},
                    {"weights", kText, true, "clean|damaged"},
                    {"growth", kReal},
                    {"onset", kObject | kNull, false, {}, &kAlarmOnset},
                    {"gradients", kObject | kNull, false, {}, &kGradients},
                    {"rerun", kText, true, "persistent|transient|order-dependent|not-run"},
                    {"rerun_by", kText, true, "closure|rewind|jump|restart|tape|trace|none"},
                    {"rerun_verified", kBool},
                    {"rerun_text", kTextOrNull},
                    {"history", kObject | kNull, false, {}, &kHistory},
                    {"births", kArray, true, {}, &kBirth, 0, 10'000},
                    {"path", kArray, false, {}, &kPlace},
                    {"cause", kObject | kNull, true, {}, &kCause},
                    {"fix", kObject | kNull, true, {}, &kFix},
                    {"capsule", kTextOrNull, true},
                    {"capsule_redacted", kBool},
                    {"last_good", kObject | kNull, false, {}, &kLastGood},
                    {"repeat_of", kCount},
                    {"buffers", kArray, false, {}, &kBuffer}}};
const Shape kAdvisory{{{"kind", kText, true},
                       {"step", kCountOrNull},
                       {"rank", kCount},
                       {"last_step", kCount},
                       {"times", kCount},
                       {"text", kText, true},
                       {"births", kArray, false, {}, &kBirth, 0, 10'000},
                       {"cause", kObject | kNull, false, {}, &kCause},
                       {"capsule", kTextOrNull}}};
const Shape kWarning{{{"what", kText, true,
                       "growth|spike|outlier|vanishing|scale|dead|clipping|norm|no-learning|headroom|"
                       "vanishing-depth|exploding-depth|logits|attention|dropped"},
                      {"name", kText, true},
                      {"quantity", kText, false, "loss|gradient|weight"},
                      {"step", kCount, true},
                      {"since", kCount, true},
                      {"rank", kCount},
                      {"optimizer", kTextOrNull},
                      {"text", kText, true},
                      {"evidence", kObject, true},
                      {"horizon", kArray | kNull, false, {}, nullptr, kCount, 2}}};
const Shape kWatched{{{"optimizers", kCount, true},
                      {"steps", kCount, true},
                      {"backward_calls", kCount, true},
                      {"gradients_scanned", kCount, true},
                      {"scaler_skips", kCount, true},
                      {"handled_by_script", kCount, true},
                      {"ranks", kCount},
                      {"skipped", kCount},
                      {"went_back", kCount},
                      {"lowered_rates", kCount},
                      {"unapplied", kCount},
                      {"zero_gradients", kCount},
                      {"not_watched", kArray, false, {}, nullptr, kText, 10'000}}};
const Shape kTracedOp{{{"op", kText, true},
                       {"file", kTextOrNull},
                       {"line", kCountOrNull},
                       {"module", kTextOrNull},
                       {"phase", kTextOrNull},
                       {"inputs", kArray, false, {}, &kStatistics},
                       {"outputs", kArray, false, {}, &kStatistics},
                       {"growth", kReal},
                       {"micro_batch", kCountOrNull},
                       {"depth", kCount},
                       {"view", kBool},
                       {"allocates", kBool},
                       {"random", kBool},
                       {"stack", kArray, false, {}, nullptr, kText},
                       {"scalars", kArray, false, {}, &kScalar}}};
const Shape kTrace{{{"ops", kArray, true, {}, &kTracedOp}, {"truncated", kBool}}};
const Shape kUnderWay{{{"pid", kCount, true}, {"start", kCount}, {"machine", kText}}};
const Shape kCheckpoints{{{"written", kCount, true},
                          {"bad", kCount, true},
                          {"after_onset", kCount, true},
                          {"last_good", kObject | kNull, true, {}, &kLastGood}}};
const Shape kReport{{{"outcome", kText, true, "clean|alarm|unwatched|running|killed"},
                     {"reason", kText},
                     {"finitude", kText},
                     {"torch", kTextOrNull},
                     {"python", kTextOrNull},
                     {"command", kArray, false, {}, nullptr, kText, 100'000},
                     {"script", kTextOrNull},
                     {"by_watch", kBool},
                     {"started", kText},
                     {"seconds", kNumber},
                     {"watched", kObject, true, {}, &kWatched},
                     {"alarms", kArray, true, {}, &kAlarm, 0, kMaxAlarms},
                     {"alarms_unlisted", kCount},
                     {"advisories", kArray, true, {}, &kAdvisory, 0, 10'000},
                     {"warnings", kArray, false, {}, &kWarning, 0, 10'000},
                     {"checkpoints", kObject, false, {}, &kCheckpoints},
                     {"trace", kObject, false, {}, &kTrace},
                     {"under_way", kObject, false, {}, &kUnderWay}}};

bool is_count(const Json& value) {
  if (value.is_number_unsigned()) return true;
  if (value.is_number_integer()) return value.get<std::int64_t>() >= 0;
  if (!value.is_number_float()) return false;
  const double number = value.get<double>();
  return number >= 0 && number < 9.0e15 && std::floor(number) == number;
}

bool is_integer(const Json& value) {
  if (value.is_number_integer()) return true;
  return value.is_number_float() && std::floor(value.get<double>()) == value.get<double>();
}

bool allowed(const Json& value, unsigned kinds) {
  return ((kinds & kText) && value.is_string()) || ((kinds & kCount) && is_count(value)) ||
         ((kinds & kNumber) && value.is_number()) || ((kinds & kInteger) && is_integer(value)) ||
         ((kinds & kReal) && (known(value) || value.is_null())) || ((kinds & kBool) && value.is_boolean()) ||
         ((kinds & kNull) && value.is_null()) || ((kinds & kArray) && value.is_array()) ||
         ((kinds & kObject) && value.is_object());
}

std::string expected(unsigned kinds) {
  constexpr struct {
    unsigned kind;
    const char* name;
  } kNames[] = {{kText, "text"},
                {kCount, "a count"},
                {kNumber, "a number"},
                {kBool, "true or false"},
                {kArray, "an array"},
                {kInteger, "an integer"},
                {kReal, "a number, \"NaN\", \"Infinity\", \"-Infinity\" or null"},
                {kObject, "an object"},
                {kNull, "null"}};
  std::string out;
  for (const auto& [kind, name] : kNames) {
    if (kinds & kind) out += (out.empty() ? "" : " or ") + std::string(name);
  }
  return out;
}

bool one_of(std::string_view word, std::string_view words) {
  while (!words.empty()) {
    const std::size_t bar = words.find('|');
    if (word == words.substr(0, bar)) return true;
    words = bar == std::string_view::npos ? std::string_view() : words.substr(bar + 1);
  }
  return false;
}

// Limits that hold everywhere, also in keys we do not know.
std::string over_limit(const Json& value, int depth) {
  if (depth > kMaxDepth) return "nested deeper than " + std::to_string(kMaxDepth);
  if (value.is_string() && value.get_ref<const std::string&>().size() > kMaxText) return "a text above 1 MiB";
  if (!value.is_structured()) return {};
  if (value.size() > kMaxItems) return "more than " + std::to_string(kMaxItems) + " items";
  for (auto item = value.begin(); item != value.end(); ++item) {
    if (value.is_object() && item.key().size() > kMaxText) return "a key above 1 MiB";
    std::string reason = over_limit(*item, depth + 1);
    if (!reason.empty()) return reason;
  }
  return {};
}

// Recursion follows the tables above, never the document, so its depth is theirs.
std::string mismatch(const Json& object, const Shape& shape, const std::string& where) {
  for (const Field& field : shape.fields) {
    const std::string place = where.empty() ? field.key : where + "." + field.key;
    const auto found = object.find(field.key);
    if (found == object.end()) {
      if (field.required) return place + " is missing";
      continue;
    }
    if (!allowed(*found, field.kinds)) return place + " is not " + expected(field.kinds);
    if (!field.words.empty() && !one_of(found->get_ref<const std::string&>(), field.words)) {
      return place + " is not one of " + std::string(field.words);
    }
    if (found->is_object() && field.shape) {
      std::string reason = mismatch(*found, *field.shape, place);
      if (!reason.empty()) return reason;
    }
    if (!found->is_array()) continue;
    if (found->size() > field.max_items) return place + " has more than " + std::to_string(field.max_items) + " items";
    for (std::size_t i = 0; i < found->size(); ++i) {
      const Json& item = (*found)[i];
      const unsigned kinds = field.shape ? unsigned{kObject} : field.items;
      if (!allowed(item, kinds)) return place + "[" + std::to_string(i) + "] is not " + expected(kinds);
      if (!field.shape) continue;
      std::string reason = mismatch(item, *field.shape, place + "[" + std::to_string(i) + "]");
      if (!reason.empty()) return reason;
    }
  }
  return {};
}

}  // namespace

std::string problem(const Json& report) {
  if (!report.is_object()) return "not a report: no JSON object";
  const Json& schema = at(report, "schema");
  if (schema.is_null()) return "not a report: schema is missing";
  if (!is_count(schema)) return "schema is not a count";
  if (schema != 1)
    return "schema " + std::to_string(count(report, "schema")) + " is not known here; this reads schema 1";
  std::string reason = over_limit(report, 1);
  if (reason.empty()) reason = mismatch(report, kReport, "");
  if (!reason.empty()) return reason;
  const std::string outcome = text(report, "outcome");
  const bool is_over = outcome != "running" && outcome != "killed";  // else it has alarms or not
  if (is_over && (outcome == "alarm") == list(report, "alarms").empty())
    return "outcome is " + outcome + ", which contradicts alarms";
  if (outcome == "unwatched" && text(report, "reason").empty()) return "reason is missing: why nothing was watched";
  return {};
}

}  // namespace finitude::show
