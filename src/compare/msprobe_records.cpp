#include "compare/msprobe_records.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

namespace finitude::compare {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kDeepestValue = 6;           // of lists in arguments
constexpr std::size_t kMostValues = 1000;  // of a record

template <typename Json>
const Json& entry(const Json& from, const char* key) {
  static const Json none;
  if (!from.is_object()) return none;
  const auto found = from.find(key);
  return found == from.end() ? none : *found;
}

template <typename Json>
std::string plain_text(const Json& value) {
  return value.is_string() ? value.template get<std::string>() : std::string();
}

// Numbers that JSON has no form for are texts there.
std::optional<double> statistic_of(const ordered_json& value) {
  if (value.is_number()) return value.get<double>();
  const std::string text = plain_text(value);
  if (text == "nan" || text == "NaN") return std::nan("");
  if (text == "inf" || text == "Infinity") return HUGE_VAL;
  if (text == "-inf" || text == "-Infinity") return -HUGE_VAL;
  return std::nullopt;
}

std::optional<RecordValue> tensor_of(const ordered_json& from, const std::string& arg) {
  if (!plain_text(entry(from, "type")).ends_with("Tensor") &&
      plain_text(entry(from, "type")) != "torch.nn.parameter.Parameter")
    return std::nullopt;
  RecordValue value;
  value.arg = arg;
  std::string dtype = plain_text(entry(from, "dtype"));
  if (dtype.starts_with("torch.")) dtype.erase(0, 6);
  value.element = element_of_name(dtype);
  sense::Health& health = value.health;
  health.numel = 1;
  for (const ordered_json& size : entry(from, "shape")) {
    const double number = size.is_number() ? size.get<double>() : 0;
    const auto one = number > 0 && number < 1e12 ? static_cast<std::uint64_t>(number) : 0;
    value.shape.push_back(static_cast<std::int64_t>(one));
    health.numel =
        one != 0 && health.numel > (std::uint64_t{1} << 50) / one ? std::uint64_t{1} << 50 : health.numel * one;
  }
  const auto max = statistic_of(entry(from, "Max")), min = statistic_of(entry(from, "Min")),
             norm = statistic_of(entry(from, "Norm"));
  value.is_ranged = max && min;
  for (const auto& bound : {max, min}) {
    if (!bound || std::isfinite(*bound)) continue;
    ++(std::isnan(*bound) ? health.nan : *bound > 0 ? health.pos_inf : health.neg_inf);
  }
  if (health.nan != 0) health.nan = 1;
  health.numel = std::max(health.numel, health.non_finite());
  health.max = max && std::isfinite(*max) ? *max : 0;
  health.min = min && std::isfinite(*min) ? *min : 0;
  health.absmax = std::max(std::fabs(health.max), std::fabs(health.min));
  if (norm && std::isfinite(*norm)) health.sum_sq = *norm * *norm;
  value.checksum = plain_text(entry(from, "md5"));
  return value;
}

void add_values(const ordered_json& from, const std::string& arg, std::vector<RecordValue>* to, int depth = 0) {
  if (depth > kDeepestValue || to->size() >= kMostValues) return;
  if (from.is_array()) {
    for (std::size_t i = 0; i < from.size(); ++i)
      add_values(from[i], from.size() == 1 ? arg : arg + "." + std::to_string(i), to, depth + 1);
  } else if (auto tensor = tensor_of(from, arg)) {
    to->push_back(std::move(*tensor));
  } else if (from.is_object() && !from.contains("type")) {
    for (const auto& [key, item] : from.items()) add_values(item, arg.empty() ? key : arg + "." + key, to, depth + 1);
  }
}

std::vector<std::string> parts_of(const std::string& name) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= name.size();) {
    const std::size_t end = std::min(name.find('.', at), name.size());
    parts.push_back(name.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

std::string joined(const std::vector<std::string>& parts, std::size_t from, std::size_t to) {
  std::string text;
  for (std::size_t i = from; i < to; ++i) text += (i == from ? "" : ".") + parts[i];
  return text;
}

// The lines that each call has in stack.json: {"NAME": [lines]}, in later versions {"0": [[names], [lines]]}.
std::map<std::string, const json*> stacks_of(const json& stack) {
  std::map<std::string, const json*> stacks;
  if (!stack.is_object()) return stacks;
  for (const auto& [name, item] : stack.items()) {
    if (!item.is_array()) continue;
    if (item.size() == 2 && item[0].is_array() && item[1].is_array()) {
      for (const json& one : item[0]) stacks[plain_text(one)] = &item[1];
    } else {
      stacks[name] = &item;
    }
  }
  return stacks;
}

// "File train.py, line 12, in forward, ..." -> the first file that is no part of a package.
void set_line(const json& lines, Record* record) {
  for (const json& one : lines) {
    const std::string text = plain_text(one);
    const std::size_t file = text.find("File "), line = text.find(", line ");
    if (file == std::string::npos || line == std::string::npos || line < file) continue;
    if (text.find("site-packages") != std::string::npos) continue;
    std::uint64_t number = 0;
    std::from_chars(text.data() + line + 7, text.data() + text.size(), number);
    record->file = text.substr(file + 5, line - file - 5);
    record->line = number;
    return;
  }
}

// "Module.layer1.Linear.forward.0", "Functional.relu.0.backward". False: another kind of name.
bool name_record(const std::string& name, Record* record) {
  const std::vector<std::string> parts = parts_of(name);
  if (parts.size() < 4) return false;
  const bool is_module = parts[0] == "Module" || parts[0] == "Cell";
  const std::size_t phase = is_module ? parts.size() - 2 : parts.size() - 1;
  const std::string& number = is_module ? parts.back() : parts[parts.size() - 2];
  if (parts[phase] != "forward" && parts[phase] != "backward") return false;
  const auto read = std::from_chars(number.data(), number.data() + number.size(), record->call);
  if (read.ec != std::errc() || read.ptr != number.data() + number.size()) return false;
  record->phase = parts[phase];
  if (is_module) {
    record->path = record->module = joined(parts, 1, parts.size() - 3);
    record->op = parts[parts.size() - 3];
  } else {
    record->module = record->op = joined(parts, 1, parts.size() - 2);
  }
  return !record->op.empty();
}

}  // namespace

bool is_msprobe_dump(const ordered_json& document) {
  return document.is_object() && entry(document, "data").is_object() && !document.contains("schema") &&
         (document.contains("task") || document.contains("level") || document.contains("dump_data_dir"));
}

std::vector<Record> records_of_msprobe(const ordered_json& document, const json& stack) {
  std::vector<Record> records;
  const std::map<std::string, const json*> stacks = stacks_of(stack);
  for (const auto& [name, item] : entry(document, "data").items()) {
    if (records.size() >= kMostRecords) break;
    if (!item.is_object()) continue;
    if (name.ends_with(".parameters_grad")) {  // "Module.conv1.Conv2d.parameters_grad": {"weight": [...]}
      const std::vector<std::string> parts = parts_of(name);
      if (parts.size() < 4) continue;
      for (const auto& [parameter, gradient] : item.items()) {
        Record record;
        record.op = "parameter";
        record.phase = "backward";
        add_values(gradient, joined(parts, 1, parts.size() - 2) + "." + parameter + ".grad", &record.outputs);
        if (!record.outputs.empty()) records.push_back(std::move(record));
      }
      continue;
    }
    Record record;
    if (!name_record(name, &record)) continue;
    if (const auto lines = stacks.find(name); lines != stacks.end()) set_line(*lines->second, &record);
    if (record.phase == "forward") {
      for (const char* key : {"input_args", "input", "input_kwargs"}) {
        const ordered_json& values = entry(item, key);
        add_values(values, "input", &record.inputs);
      }
      add_values(entry(item, "parameters"), "", &record.parameters);
      add_values(entry(item, "output"), "output", &record.outputs);
    } else {
      // The gradient of what it returned; of an operator also what it hands on.
      const bool is_module = record.module != record.op;
      add_values(entry(item, "input"), "output.grad", is_module ? &record.outputs : &record.inputs);
      if (!is_module) add_values(entry(item, "output"), "input.grad", &record.outputs);
    }
    records.push_back(std::move(record));
  }
  return records;
}

}  // namespace finitude::compare
