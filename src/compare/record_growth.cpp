#include "compare/record_growth.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace finitude::compare {
namespace {

constexpr std::size_t kDeepestModule = 64;

// What was not read is not known to be finite.
bool is_finite(const std::vector<RecordValue>& values) {
  return std::all_of(values.begin(), values.end(), [](const RecordValue& v) {
    const bool is_empty = std::find(v.shape.begin(), v.shape.end(), 0) != v.shape.end();
    return v.health.ok() && (v.health.numel != 0 || is_empty || !is_float(v.element.number));
  });
}

double largest_of(const std::vector<RecordValue>& values) {
  double largest = 0;
  for (const RecordValue& value : values) {
    if (is_float(value.element.number)) largest = std::max(largest, value.health.absmax);
  }
  return largest;
}

}  // namespace

std::vector<Growth> ranked_growth(const std::vector<Record>& records) {
  std::vector<Growth> all;
  const Record* gradient = nullptr;  // the one before, where what a module read in the backward is not recorded
  for (std::size_t i = 0; i < records.size(); ++i) {
    const Record& record = records[i];
    if (record.is_parameter() || record.outputs.empty() || record.op.ends_with("_like")) continue;
    const bool is_gradient = record.phase == "backward" && record.inputs.empty();
    const std::vector<RecordValue>& read = is_gradient && gradient != nullptr ? gradient->outputs : record.inputs;
    if (is_gradient) gradient = &record;
    Growth growth;
    growth.record = i;
    growth.in = largest_of(read);
    growth.out = largest_of(record.outputs);
    growth.ratio = growth.in > 0 && std::isfinite(growth.out / growth.in) ? growth.out / growth.in : 0;
    growth.is_broken =
        std::any_of(record.outputs.begin(), record.outputs.end(), [](const RecordValue& v) { return !v.health.ok(); });
    if (growth.is_broken) growth.ratio = 0;  // of what is left of the values
    growth.is_born = growth.is_broken && !read.empty() && is_finite(read) && is_finite(record.parameters);
    all.push_back(growth);
  }
  std::stable_sort(all.begin(), all.end(), [](const Growth& a, const Growth& b) {
    return a.is_born != b.is_born ? a.is_born : !a.is_born && a.ratio > b.ratio;
  });
  return all;
}

std::vector<ModuleGrowth> module_growth(const std::vector<Record>& records, const std::vector<Growth>& growth) {
  std::map<std::size_t, const Growth*> of;
  for (const Growth& one : growth) of[one.record] = &one;
  std::vector<std::string> paths;  // in the order of their first record
  std::map<std::string, ModuleGrowth> modules;
  std::map<std::string, std::vector<std::string>> children;
  for (const auto& [record, one] : of) {
    const std::string& path = records[record].path;
    if (path.empty()) continue;
    std::size_t depth = 0;
    for (std::size_t end = 0; end != std::string::npos && depth < kDeepestModule; ++depth) {
      end = path.find('.', end == 0 ? 0 : end + 1);
      const std::string name = path.substr(0, end);
      if (!modules.contains(name)) {
        modules[name] = {name, depth, 0, 0, 0, false};
        const std::size_t dot = name.rfind('.');
        children[dot == std::string::npos ? "" : name.substr(0, dot)].push_back(name);
      }
      ModuleGrowth& module = modules[name];
      ++module.records;
      module.ratio = std::max(module.ratio, one->ratio);
      module.out = std::max(module.out, one->out);
      module.is_broken |= one->is_broken;
    }
  }
  std::vector<ModuleGrowth> ordered;
  std::vector<std::string> open(children[""].rbegin(), children[""].rend());
  while (!open.empty()) {
    const std::string name = open.back();
    open.pop_back();
    ordered.push_back(modules[name]);
    const std::vector<std::string>& inner = children[name];
    open.insert(open.end(), inner.rbegin(), inner.rend());
  }
  return ordered;
}

}  // namespace finitude::compare
