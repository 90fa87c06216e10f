#include "compare/records.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

namespace finitude::compare {
namespace {

using nlohmann::json;

const json& member(const json& from, const char* key) {
  static const json none;
  if (!from.is_object()) return none;
  const auto found = from.find(key);
  return found == from.end() ? none : *found;
}
double real_of(const json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_string()) return 0;
  const std::string& text = value.get_ref<const std::string&>();
  return text == "NaN" ? std::nan("") : text == "Infinity" ? HUGE_VAL : text == "-Infinity" ? -HUGE_VAL : 0;
}
std::uint64_t count_of(const json& value) {
  const double number = value.is_number() ? value.get<double>() : 0;
  return number > 0 && number < 9.0e15 ? static_cast<std::uint64_t>(number) : 0;
}
std::string text_of(const json& value) { return value.is_string() ? value.get<std::string>() : std::string(); }

RecordValue value_of(const json& from) {
  RecordValue v;
  v.arg = text_of(member(from, "arg"));
  v.element = element_of_name(text_of(member(from, "dtype")));
  const auto sizes = [&](const char* key) {
    std::vector<std::int64_t> found;
    for (const json& size : member(from, key)) found.push_back(static_cast<std::int64_t>(count_of(size)));
    return found;
  };
  v.shape = sizes("shape");
  v.full_shape = sizes("full_shape");
  v.begins = sizes("begins");
  v.is_partial = member(from, "is_partial") == true;
  sense::Health& h = v.health;
  h.nan = count_of(member(from, "nan"));
  h.neg_inf = count_of(member(from, "neg_inf"));
  const std::uint64_t inf = count_of(member(from, "inf"));
  h.pos_inf = inf - std::min(h.neg_inf, inf);
  h.zero = count_of(member(from, "zero"));
  h.min = real_of(member(from, "min"));
  h.max = real_of(member(from, "max"));
  h.absmax = real_of(member(from, "absmax"));
  h.sum_sq = real_of(member(from, "sum_sq"));
  h.numel = std::max(count_of(member(from, "numel")), h.non_finite());
  v.checksum = text_of(member(from, "checksum"));
  return v;
}

std::vector<RecordValue> values_of(const json& all, const std::string& key) {
  std::vector<RecordValue> values;
  for (const json& one : all) {
    if (!one.is_object()) continue;
    values.push_back(value_of(one));
    values.back().key = text_of(member(one, "values"));
    if (values.back().key.empty()) values.back().key = key.empty() ? values.back().arg : key + "." + values.back().arg;
  }
  return values;
}

// Operators may have checksums, and say which memory it is.
bool is_of_module(const json& op) {
  for (const char* key : {"inputs", "outputs"}) {
    for (const json& tensor : member(op, key)) {
      if (member(tensor, "checksum").is_string() && !member(tensor, "storage").is_number()) return true;
    }
  }
  return false;
}

}  // namespace

std::string RecordValue::identity() const {
  std::string text = std::to_string(element.reals) + std::string(element.dtype);
  for (const std::int64_t size : shape) text += "," + std::to_string(size);
  if (!checksum.empty()) return text + " " + checksum;
  char written[160];
  std::snprintf(written, sizeof written, " %.17g %.17g %.17g %llu", health.min, health.max, health.sum_sq,
                static_cast<unsigned long long>(health.non_finite()));
  return text + written;
}

bool has_module_records(const json& trace) {
  const json& ops = member(trace, "ops");
  return std::any_of(ops.begin(), ops.end(), is_of_module);
}

std::vector<Record> records_of_trace(const json& trace) {
  const bool of_modules = has_module_records(trace);
  std::vector<Record> records;
  std::map<std::string, std::uint64_t> counts;
  for (const json& op : member(trace, "ops")) {
    if (records.size() >= kMostRecords) break;
    if (!op.is_object() || member(op, "view") == true || member(op, "allocates") == true) continue;
    if (!of_modules && count_of(member(op, "depth")) != 0) continue;
    Record r;
    r.op = text_of(member(op, "op"));
    r.path = text_of(member(op, "module"));
    r.module = of_modules ? r.path : r.op;
    r.phase = text_of(member(op, "phase"));
    r.settings = text_of(member(op, "settings"));
    r.file = text_of(member(op, "file"));
    r.line = count_of(member(op, "line"));
    r.micro_batch = count_of(member(op, "micro_batch"));
    r.call = of_modules ? count_of(member(op, "call")) : counts[r.phase + " " + r.op]++;
    std::string key = r.module;
    if (of_modules && r.call != 0) key += "#" + std::to_string(r.call);
    r.inputs = values_of(member(op, "inputs"), key);
    r.parameters = values_of(member(op, "parameters"), key);
    r.outputs = values_of(member(op, "outputs"), key);
    records.push_back(std::move(r));
  }
  return records;
}

}  // namespace finitude::compare
