#include "capture/redact.h"

#include <algorithm>
#include <map>

#include "capture/step_statistics.h"
#include "finitude/scan.h"
#include "record/reported_range.h"

namespace finitude::capture {
namespace {

using nlohmann::json;

sense::DType scan_dtype(std::uint8_t dtype) {
  switch (dtype) {
    case 5:
      return sense::DType::kFloat16;
    case 6:
      return sense::DType::kFloat32;
    case 7:
      return sense::DType::kFloat64;
    case 9:
      return sense::DType::kComplex64;
    case 10:
      return sense::DType::kComplex128;
    case 15:
      return sense::DType::kBFloat16;
    default:
      return sense::DType::kOther;
  }
}

json statistics_of(const Storage& storage, std::uint8_t dtype) {
  const std::size_t numel = storage.bytes.size() / std::max<std::size_t>(item_bytes(dtype), 1);
  json found = {{"kind", storage.kind}, {"bytes", storage.size_bytes}};
  if (scan_dtype(dtype) == sense::DType::kOther || storage.bytes.empty()) return found;
  const sense::Health health = sense::full_scan(storage.bytes.data(), numel, scan_dtype(dtype));
  found.update({{"numel", numel}, {"nan", health.nan}, {"inf", health.inf()}, {"zero", health.zero}});
  if (health.finite() != 0 && !record::range_gives_values_away(health))
    found.update({{"min", health.min}, {"max", health.max}});
  return found;
}

void forget(std::vector<Value>& values) {
  for (Value& value : values) {
    value.real = value.imag = 0;
    if (value.kind == Value::kString) value.text.clear();
    for (TensorRef& tensor : value.tensors) tensor.constant.assign(tensor.constant.size(), '\0');
    forget(value.items);
  }
}

// Without a sum of squares nobody can say whether all have one magnitude: where that may be, the range goes too.
bool may_give_values_away(const json& reported) {
  const auto number = [&](const char* key) {
    return reported.contains(key) && reported[key].is_number() ? reported[key].get<double>() : 0;
  };
  if (!reported.contains("numel")) return false;
  const double low = number("min"), high = number("max"),
               values = number("numel") - number("nan") - number("inf") - number("zero");
  return values < static_cast<double>(record::kFewestValues) || low == high || low == -high || low == 0 || high == 0;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_of_name(char c) {
  return is_digit(c) || c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c & 0x80) != 0;
}

// The end of a number with a fraction or an exponent that begins there; `at` where none does. Counts are none, and
// neither are parts of names (layers.0.1.weight) or versions (2.13.0).
std::size_t end_of_number(const std::string& text, std::size_t at) {
  const auto digits = [&](std::size_t from) {
    while (from < text.size() && is_digit(text[from])) ++from;
    return from;
  };
  if (at > 0 && (is_of_name(text[at - 1]) || text[at - 1] == '.')) return at;
  const std::size_t first = at + (text[at] == '-' ? 1 : 0), whole = digits(first);
  if (whole == first) return at;
  std::size_t end = whole;
  if (end + 1 < text.size() && text[end] == '.' && is_digit(text[end + 1])) end = digits(end + 1);
  if (end < text.size() && (text[end] == 'e' || text[end] == 'E')) {
    const std::size_t sign = end + 1,
                      power = sign + (sign < text.size() && (text[sign] == '+' || text[sign] == '-') ? 1 : 0);
    if (digits(power) > power) end = digits(power);
  }
  const bool goes_on = end < text.size() && (is_of_name(text[end]) ||
                                             (text[end] == '.' && end + 1 < text.size() && is_of_name(text[end + 1])));
  return end == whole || goes_on ? at : end;
}

std::string without_numbers(const std::string& text) {
  std::string kept;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = end_of_number(text, at);
    if (end == at) {
      kept += text[at++];
    } else {
      kept += "(redacted)";
      at = end;
    }
  }
  return kept;
}

}  // namespace

// python/finitude/report/capsule_alarm.py does the same.
void redact_alarm(json& alarm) {
  if (alarm.is_object()) {
    for (const char* key :
         {"source", "expression", "file", "line", "saved", "diff", "samples", "history", "scalars", "onsets", "onset"})
      alarm.erase(key);
    if (may_give_values_away(alarm)) {
      for (const char* key : {"min", "max", "absmax", "mean", "sum_sq"}) alarm.erase(key);
    }
    if (alarm.contains("loss") && alarm["loss"].is_number()) alarm["loss"] = nullptr;
    if (alarm.contains("outcome") && alarm["outcome"].is_string()) {
      const std::string& outcome = alarm["outcome"].get_ref<const std::string&>();
      alarm["outcome"] = outcome.substr(0, outcome.find(':'));  // what follows may show a value and its line
    }
  }
  if (!alarm.is_structured()) return;
  for (const char* key : {"text", "tried", "name", "reason", "rerun_text"}) {
    if (alarm.is_object() && alarm.contains(key) && alarm[key].is_string())
      alarm[key] = without_numbers(alarm[key].get_ref<const std::string&>());
  }
  for (json& item : alarm) redact_alarm(item);
}

json redact(Tape& tape) {
  std::map<StorageId, std::uint8_t> dtypes;
  for (const Entry& entry : tape.entries) {
    for_each_tensor(entry.args, [&](const TensorRef& t) { dtypes.try_emplace(t.storage, t.dtype); });
  }
  json found = json::object();
  for (StorageId id = 0; id < tape.storages.size(); ++id) {
    Storage& storage = tape.storages[id];
    if (storage.origin == Storage::kInput && dtypes.contains(id)) {
      found[storage.name.empty() ? "input." + std::to_string(id) : storage.name] = statistics_of(storage, dtypes[id]);
    }
    storage.bytes.clear();
  }
  for (Entry& entry : tape.entries) {
    entry.bytes.clear();
    forget(entry.args);
  }
  for (Entry& entry : tape.entries) entry.place = kNoPlace;
  tape.places.clear();
  tape.exchanges.clear();
  for (Outcome& outcome : tape.outcomes) {
    outcome.checksum = outcome.sample_every = 0;
    outcome.sample.clear();
  }
  if (record::Trace trace; !tape.statistics.empty()) {
    const bool known = read_statistics(tape.statistics, &trace).ok();
    tape.statistics = known ? write_statistics(trace, true) : "";
  }
  tape.gaps.push_back("its values were redacted");
  return found;
}

}  // namespace finitude::capture
