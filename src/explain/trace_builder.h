// For tests: a small trace written as lines of code, with statistics computed from real numbers, and a
// laboratory whose answers are a table.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "explain/explain.h"

namespace finitude::explain {

inline constexpr double kInf = INFINITY;
inline const double kNaN = std::nan("");

inline sense::Health health_of(const std::vector<double>& values, double min_normal = 1e-38) {
  sense::Health health;
  bool any = false;
  for (const double v : values) {
    ++health.numel;
    if (std::isnan(v))
      ++health.nan;
    else if (std::isinf(v))
      ++(v > 0 ? health.pos_inf : health.neg_inf);
    else {
      health.min = any ? std::min(health.min, v) : v;
      health.max = any ? std::max(health.max, v) : v;
      any = true;
      health.absmax = std::max(health.absmax, std::fabs(v));
      health.sum_sq += v * v;
      if (v == 0)
        ++health.zero;
      else if (std::fabs(v) < min_normal)
        ++health.subnormal;
    }
  }
  return health;
}

struct Argument {
  std::string name;
  record::TensorUse use;
};

class TraceBuilder {
 public:
  record::Trace trace;
  locate::Located located;
  StepHistory history;
  Lab* lab = nullptr;
  record::Phase phase = record::Phase::kForward;

  // A new tensor in a storage of its own.
  record::TensorUse tensor(const std::vector<double>& values, sense::DType dtype = sense::DType::kFloat32,
                           record::Origin origin = record::Origin::kUnknown, std::string name = {}) {
    record::TensorUse use;
    use.storage = static_cast<record::StorageId>(trace.storages.size());
    use.dtype = dtype;
    use.shape = {static_cast<std::int64_t>(values.size())};
    use.end = static_cast<std::int64_t>(std::max<std::size_t>(values.size(), 1) * 4);
    if (dtype != sense::DType::kOther) use.health = health_of(values, sense::info(dtype).min_normal);
    trace.storages.push_back({origin, std::move(name), record::kNone});
    return use;
  }
  // The same memory, holding other values by now.
  static record::TensorUse holding(record::TensorUse use, const std::vector<double>& values) {
    use.health = health_of(values);
    return use;
  }
  static record::TensorUse shaped(record::TensorUse use, std::vector<std::int64_t> shape) {
    use.shape = std::move(shape);
    return use;
  }
  record::TensorUse number(double value) { return tensor({value}, sense::DType::kFloat64, record::Origin::kConstant); }
  record::TensorUse integer() {  // a Python int as PyTorch hands it to an op: no statistics
    auto use = tensor({}, sense::DType::kOther, record::Origin::kConstant);
    use.shape = {};
    return use;
  }
  static record::ScalarUse scalar(std::string arg, double value) {
    return {std::move(arg), std::to_string(value), value, true};
  }

  record::OpId op(std::string name, std::vector<Argument> inputs, std::vector<record::TensorUse> outputs,
                  std::vector<record::ScalarUse> scalars = {}) {
    record::Op op;
    op.name = std::move(name);
    op.phase = phase;
    op.node = node_;
    op.parent = node_;
    op.stack = phase == record::Phase::kBackward ? record::kNone : line(static_cast<int>(trace.ops.size()) + 1);
    for (auto& argument : inputs) {
      argument.use.arg = argument.name;
      op.inputs.push_back(std::move(argument.use));
    }
    op.outputs = std::move(outputs);
    op.scalars = std::move(scalars);
    op.captured = true;
    op.end_order = ++ends_;
    trace.ops.push_back(std::move(op));
    return static_cast<record::OpId>(trace.ops.size() - 1);
  }

  // Ops until end_node() belong to the backward of `forward`.
  void begin_node(std::string name, record::OpId forward) {
    phase = record::Phase::kBackward;
    node_ = record::kNone;
    node_ = op(std::move(name), {}, {});
    trace.ops[node_].is_node = true;
    trace.ops[node_].forward = forward;
  }
  void end_node() {
    trace.ops[node_].end_order = ++ends_;
    node_ = record::kNone;
  }

  locate::Birth& born(record::OpId id) {
    locate::Birth birth;
    birth.op = id;
    birth.phase = trace.ops[id].phase;
    birth.kind = birth.phase == record::Phase::kBackward    ? "backward"
                 : birth.phase == record::Phase::kOptimizer ? "optimizer"
                 : birth.phase == record::Phase::kData      ? "data"
                                                            : "forward";
    birth.node = trace.ops[id].node;
    if (birth.node != record::kNone) birth.forward = trace.ops[birth.node].forward;
    located.births = {birth};
    return located.births.front();
  }

  Finding explained() { return explain(evidence()); }
  // Does this one rule speak?
  bool speaks(const std::string& rule) {
    for (const auto& candidate : rules())
      if (candidate->name() == rule) return candidate->judge(evidence()).has_value();
    ADD_FAILURE() << "no rule " << rule;
    return false;
  }
  Evidence evidence() { return {trace, located, 0, history, lab}; }

  std::uint32_t line(int number) {
    trace.stacks.push_back({{{"/user/model.py", number, "forward"}}, "Net", {}});
    return static_cast<std::uint32_t>(trace.stacks.size() - 1);
  }

 private:
  record::OpId node_ = record::kNone;
  std::uint32_t ends_ = 0;
};

// Answers by what a variant changes: "float64", "float32", "clamp", "replace", "scale", "rows", "parts", "again".
class TableLab : public Lab {
 public:
  std::map<std::string, std::vector<double>> answers;
  std::map<record::OpId, replay::Wrapped> integers;  // that wrapped around, by the call
  std::map<std::string, replay::Integers> lists;     // whole numbers, by argument
  int runs = 0;

  std::optional<replay::Integers> whole_numbers(record::OpId, const std::string& arg) override {
    const auto found = lists.find(arg);
    return found == lists.end() ? std::nullopt : std::optional(found->second);
  }
  std::optional<replay::Wrapped> wrapped(record::OpId op) override {
    const auto found = integers.find(op);
    return found == integers.end() ? std::nullopt : std::optional(found->second);
  }
  Trial run(record::OpId, const Variant& variant) override {
    ++runs;
    const std::string key = variant.compute_dtype          ? std::string(sense::info(*variant.compute_dtype).name)
                            : !variant.clamp_arg.empty()   ? "clamp"
                            : !variant.replace_arg.empty() ? "replace"
                            : !variant.scale_arg.empty()   ? "scale"
                            : !variant.drop_rows.empty()   ? "rows"
                            : variant.by_parts             ? "parts"
                                                           : "again";
    Trial trial;
    const auto found = answers.find(key);
    if (found == answers.end()) {
      trial.why_not = "not in the table";
      return trial;
    }
    trial.ran = true;
    trial.outputs = {health_of(found->second)};
    return trial;
  }
};

}  // namespace finitude::explain
