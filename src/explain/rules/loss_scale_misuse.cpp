// A gradient that overflows half precision because the loss was multiplied by too large a scale: a scaler
// whose skips do not end, or a constant scale applied without a check.
#include <cmath>

#include "explain/origin.h"
#include "explain/probe.h"
#include "explain/range.h"
#include "explain/rules/rules.h"

namespace finitude::explain {
namespace {

constexpr double kLargeScale = 256;      // below this a scale is a weight, not a loss scale
constexpr std::uint32_t kPatience = 20;  // skips in a row that a calibrating scaler may take

// A one-element forward value multiplied by a large number of the program: loss * 2**20.
double constant_scale(const record::Trace& trace) {
  for (auto op = trace.ops.rbegin(); op != trace.ops.rend(); ++op) {
    if (op->phase != record::Phase::kForward || plain_name(op->name) != "mul" || op->outputs.empty()) continue;
    if (op->outputs.front().health.numel != 1 || !op->outputs.front().requires_grad) continue;
    for (const char* arg : {"other", "self"}) {
      const auto number = constant(trace, operand(*op, arg, arg[0] == 'o' ? 1 : 0));
      if (number && std::isfinite(*number) && std::fabs(*number) >= kLargeScale) return *number;
    }
  }
  return 0;
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

class LossScaleMisuse : public Rule {
 public:
  const char* name() const override { return "loss-scale-misuse"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    if (!s.op || s.culprit != s.birth.op || s.forward_bad() || !reads_gradient(s)) return std::nullopt;
    const auto excess = find_excess(*s.op);
    if (!excess || !sense::is_half(excess->dtype) || excess->exponential) return std::nullopt;
    const StepHistory& history = evidence.history;
    const bool stuck =
        history.scaler_active && (history.scaler_skips_in_row > kPatience || (history.scale > 0 && history.scale < 1));
    const double by_hand = history.scaler_active ? 0 : constant_scale(s.trace);
    if (!stuck && by_hand == 0 && !history.scaler_active) return std::nullopt;
    std::string text = "a gradient overflows " + dtype_name(excess->dtype) + " in " + s.op->name +
                       " (largest operand " + figure(excess->largest) + "): ";
    if (by_hand != 0)
      text += "the loss is multiplied by " + figure(by_hand);
    else
      text += "the loss scale is " + figure(history.scale) +
              (stuck ? " after " + counted(history.scaler_skips_in_row, "skip") + " in a row" : "");
    Finding result = finding(
        s, "loss-scale-misuse", kScoreSetting + (stuck || by_hand != 0 ? 40 : -20), text,
        by_hand != 0 ? "torch.amp.GradScaler, which skips such steps and lowers the scale, or a smaller constant"
                     : "unscale before using gradients, start from a smaller init_scale, or find the layer whose "
                       "gradient no scale can hold");
    Probe probe(s, s.birth.op);
    if (const double scale = by_hand != 0 ? std::fabs(by_hand) : history.scale; scale > 1 && !s.op->inputs.empty()) {
      const std::string read = first_read(*s.op), arg = read.empty() ? "self" : read;
      Variant unscaled;
      unscaled.scale_arg = arg;
      unscaled.scale = 1 / scale;
      probe.finite_if(arg + " without the loss scale", unscaled);
    }
    probe.again();
    probe.conclude(result, stuck || by_hand != 0);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> loss_scale_misuse() { return std::make_unique<LossScaleMisuse>(); }

}  // namespace finitude::explain
