// A loss or gradient that overflows because the loss was multiplied by too large a scale: a scaler whose skips do not
// end, a constant scale applied without a check, a scale that was applied twice.
#include <algorithm>
#include <cmath>
#include <utility>

#include "explain/left_scale.h"
#include "explain/origin.h"
#include "explain/probe.h"
#include "explain/range.h"
#include "explain/rules/rules.h"

namespace finitude::explain {
namespace {

constexpr double kLargeScale = 256;      // below this a scale is a weight, not a loss scale
constexpr std::uint32_t kPatience = 20;  // skips in a row that a calibrating scaler may take

// In float32 a scale that a scaler begins with overflows nothing: there it has to be far beyond that.
constexpr double kLargeInFloat32 = 1 << 24;

// One multiplication of a loss (one element, with a gradient) by a large number of the program or by the scaler's
// scale.
struct Scaled {
  record::OpId op = record::kNone;
  double scale = 0;
  const record::TensorUse* loss = nullptr;  // what was multiplied
};

Scaled scaled_by(const Scene& s, record::OpId id) {
  const record::Op& op = s.trace.ops[id];
  if (op.phase != record::Phase::kForward || !one_of(plain_name(op.name), {"mul", "multiply"})) return {};
  if (op.outputs.empty() || op.outputs.front().health.numel != 1 || !op.outputs.front().requires_grad) return {};
  const Operand self = operand(op, "self", 0), other = operand(op, "other", 1);
  const StepHistory& history = s.evidence.history;
  for (const auto& [factor, loss] : {std::pair(&other, &self), std::pair(&self, &other)}) {
    if (!*factor && !factor->tensor) continue;
    const auto number = constant(s.trace, *factor);
    if (number && std::isfinite(*number) && std::fabs(*number) >= kLargeScale) return {id, *number, loss->tensor};
    const bool is_scalers = history.scaler_active && history.scale >= kLargeScale && factor->tensor &&
                            is_loss_scale(*factor->tensor, history.scale);
    if (is_scalers) return {id, history.scale, loss->tensor};
  }
  return {};
}

// The last one by a number of the program: loss * 2**20.
Scaled constant_scale(const Scene& s) {
  for (auto id = static_cast<record::OpId>(s.trace.ops.size()); id-- > 0;) {
    const Scaled scaled = scaled_by(s, id);
    if (scaled.scale != 0 && !(s.evidence.history.scaler_active && scaled.scale == s.evidence.history.scale))
      return scaled;
  }
  return {};
}

// A loss that the scaler's scale multiplies, and then once more: {the first, the second}.
std::optional<std::pair<Scaled, Scaled>> scaled_twice(const Scene& s) {
  if (!s.evidence.history.scaler_active) return std::nullopt;
  for (record::OpId id = 0; id < s.trace.ops.size(); ++id) {
    const Scaled second = scaled_by(s, id);
    if (second.scale != s.evidence.history.scale || !second.loss) continue;
    const record::TensorUse* read = second.loss;
    record::OpId reader = id;
    for (int step = 0; step < 8; ++step) {
      const record::OpId made = producer(s.trace, reader, *read);
      if (made == record::kNone) break;
      const Scaled first = scaled_by(s, made);
      if (first.scale == s.evidence.history.scale) return std::pair(first, second);
      const record::Op& op = s.trace.ops[made];
      // The mean over micro-batches, a sum of losses.
      if (!one_of(plain_name(op.name), {"div", "true_divide", "add", "mul"}) && !is_carrier(op)) break;
      const auto input = std::ranges::find_if(op.inputs, [](const auto& use) { return use.requires_grad; });
      if (input == op.inputs.end()) break;
      read = &*input, reader = made;
    }
  }
  return std::nullopt;
}

std::optional<Finding> of_twice(const Scene& s) {
  const auto twice = scaled_twice(s);
  if (!s.op || !twice) return std::nullopt;
  const double scale = twice->second.scale;
  std::string text = "the loss is multiplied by the loss scale twice" + at_line(s.trace, s.trace.ops[twice->first.op]) +
                     " and" + at_line(s.trace, s.trace.ops[twice->second.op]) +
                     ", so the gradients that unscale_ leaves are " + figure(scale) + " times too large; " +
                     s.first->name + " overflows as a result";
  Finding result = finding(s, "loss-scale-misuse", kScoreSetting + 60, text,
                           "call scaler.scale(loss) once, on the loss that backward is called on");
  result.fix_is_no_edit = true;
  mend_at(s.trace, s.trace.ops[twice->second.op], &result);
  conclude(result, true);
  return result;
}

// Made in backward, or a leaf's .grad from before.
bool reads_gradient(const Scene& s) {
  if (s.backward) return true;
  for (const auto& use : s.op->inputs) {
    if (use.storage < s.trace.storages.size() && s.trace.storages[use.storage].origin == record::Origin::kGradient)
      return true;
    const record::OpId made = producer(s.trace, s.birth.op, use);
    if (made != record::kNone && s.trace.ops[made].phase == record::Phase::kBackward) return true;
  }
  return false;
}

Variant unscaled(const Scene& s, double scale) {
  const std::string read = first_factor(*s.op);
  Variant without;
  without.scale_arg = read.empty() ? "self" : read;
  without.scale = 1 / scale;
  return without;
}

// Would the call stay in range without the scale? By its operand, as the step has it or as the laboratory finds.
bool fits_unscaled(const Scene& s, double by_hand) {
  const double scale = by_hand != 0 ? std::fabs(by_hand) : s.evidence.history.scale;
  if (!s.evidence.lab || !s.op->captured) return true;
  const Trial trial = s.evidence.lab->run(s.birth.op, unscaled(s, scale));
  return !trial.ran || trial.finite();
}

class LossScaleMisuse : public Rule {
 public:
  const char* name() const override { return "loss-scale-misuse"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    if (auto twice = of_twice(s)) return twice;
    if (!s.op || s.culprit != s.birth.op) return std::nullopt;
    // The multiplication itself, or a gradient of what it made.
    Scaled here = s.backward ? Scaled{} : scaled_by(s, s.birth.op);
    const bool is_weight = evidence.history.scaler_active && here.scale != evidence.history.scale;
    if (is_weight) here = {};  // of that loss, beside the scaler's scale
    if (here.scale == 0 && (s.forward_bad() || !reads_gradient(s))) return std::nullopt;
    const auto excess = find_excess(*s.op);
    if (!excess || excess->exponential) return std::nullopt;
    const StepHistory& history = evidence.history;
    const bool stuck =
        history.scaler_active && (history.scaler_skips_in_row > kPatience || (history.scale > 0 && history.scale < 1));
    const double by_hand = history.scaler_active ? 0 : here.scale != 0 ? here.scale : constant_scale(s).scale;
    if (!stuck && by_hand == 0 && !history.scaler_active) return std::nullopt;
    if (!sense::is_half(excess->dtype) &&
        (std::fabs(by_hand != 0 ? by_hand : history.scale) < kLargeInFloat32 || !fits_unscaled(s, by_hand)))
      return std::nullopt;
    std::string text = std::string(here.scale != 0 ? "the scaled loss" : "a gradient") + " overflows " +
                       dtype_name(excess->dtype) + " in " + s.op->name + " (largest operand " +
                       figure(excess->largest) + "): ";
    if (by_hand != 0)
      text += "the loss is multiplied by " + figure(by_hand);
    else
      text += "the loss scale is " + figure(history.scale) +
              (stuck ? " after " + counted(history.scaler_skips_in_row, "skip") + " in a row" : "");
    const bool is_settled = stuck || by_hand != 0 || !sense::is_half(excess->dtype);
    Finding result = finding(
        s, "loss-scale-misuse", kScoreSetting + (is_settled ? 40 : -20), text,
        by_hand != 0 ? "torch.amp.GradScaler, which skips such steps and lowers the scale, or a smaller constant"
        : history.scale >= kLargeInFloat32
            ? "start the GradScaler with a smaller init_scale (its default is 65536), call scaler.update() after each "
              "scaler.step(), and unscale before using gradients"
            : "unscale before using gradients, start from a smaller init_scale, or find the layer whose "
              "gradient no scale can hold");
    Probe probe(s, s.birth.op);
    if (const double scale = by_hand != 0 ? std::fabs(by_hand) : history.scale; scale > 1 && !s.op->inputs.empty()) {
      const Variant without = unscaled(s, scale);
      probe.finite_if(without.scale_arg + " without the loss scale", without);
    }
    probe.again();
    probe.conclude(result, is_settled);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> loss_scale_misuse() { return std::make_unique<LossScaleMisuse>(); }

}  // namespace finitude::explain
