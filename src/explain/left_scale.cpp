#include "explain/left_scale.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "explain/evidence.h"

namespace finitude::explain {
namespace {

// Where the scale, a tensor of one element, multiplies a loss; kNone: nowhere in this step.
record::OpId multiplied_by(const record::Trace& trace, double scale) {
  const auto is_scale = [scale](const record::TensorUse& use) { return is_loss_scale(use, scale); };
  for (record::OpId id = 0; id < trace.ops.size(); ++id) {
    const record::Op& op = trace.ops[id];
    if (op.phase == record::Phase::kForward && plain_name(op.name) == "mul" && !op.outputs.empty() &&
        op.outputs.front().requires_grad && std::ranges::any_of(op.inputs, is_scale))
      return id;
  }
  return record::kNone;
}

// Others (Adam, Adagrad, RMSprop, Lion) divide by a norm of the gradients, or take their sign.
bool is_update_in_proportion(const std::string& optimizer) { return one_of(optimizer, {"SGD", "ASGD"}); }

}  // namespace

bool is_loss_scale(const record::TensorUse& use, double scale) {
  return use.health.numel == 1 && !use.requires_grad && std::fabs(use.health.max - scale) <= 1e-6 * scale;
}

void judge_left_scale(Finding& finding, const StepHistory& history, const record::Trace& trace) {
  if (finding.cause_class != "learning-rate" || !(history.left_scale > 1)) return;
  const record::OpId multiplied = multiplied_by(trace, history.left_scale);
  if (multiplied == record::kNone) return;
  const std::string said = history.optimizer + ".step() takes gradients that are still multiplied by the loss scale " +
                           figure(history.left_scale) + at_line(trace, trace.ops[multiplied]) +
                           ": neither scaler.step(optimizer) nor scaler.unscale_(optimizer) was called";
  if (!is_update_in_proportion(history.optimizer)) {
    finding.text += "; besides, " + said;
    return;
  }
  finding.cause_class = "loss-scale-misuse";
  finding.text = said + ", so each update is " + figure(history.left_scale) +
                 " times too large. What follows from that: " + finding.text;
  finding.fix_text = "call scaler.step(optimizer) and then scaler.update(), in place of optimizer.step()";
  finding.fix_outcome = finding.fix_outcome.substr(0, finding.fix_outcome.find(';'));  // of the learning rate
}

}  // namespace finitude::explain
