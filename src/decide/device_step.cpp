#include "decide/device_step.h"

namespace finitude::decide {

Way choose_way(const DeviceStep& step) noexcept {
  if (!step.can_scan || step.capturing) return Way::kOut;
  if (step.wants_answer) return Way::kWait;
  if (!step.vetoes) return Way::kWatch;
  // With a CPU part the kernel for that part has a flag of its own; several devices would each need the others'
  // verdict.
  const bool one_place = step.devices == 1 && !step.has_cpu_gradients;
  const bool flag_is_ours = !step.has_foreign_flag || step.foreign_flag_fits;
  return one_place && step.kernel_takes_flag && step.every_state_exists && flag_is_ours ? Way::kFlag : Way::kWait;
}

bool counts_loss(Policy policy) noexcept { return policy == Policy::kSkip || policy == Policy::kRollback; }

LateVerdict judge_late(const LateFacts& facts) noexcept {
  LateVerdict verdict;
  const bool bad_gradient = facts.bad_tensors != 0;
  verdict.norm_overflow = facts.norm_not_finite && !bad_gradient;
  if (facts.way == Way::kFlag) {
    verdict.left_out = bad_gradient || facts.foreign_flag || (facts.loss_counted && facts.loss_bad);
  } else {
    verdict.left_out = facts.foreign_flag;  // the kernel obeys the scaler's flag without us
  }
  // "a GradScaler skip with a finite unscaled loss, Inf or NaN gradients: normal". "A non-finite unscaled loss alarms
  // at once".
  if (facts.foreign_flag && !facts.loss_bad) {
    verdict.kind = LateVerdict::Kind::kScalerSkip;
    return verdict;
  }
  if (!bad_gradient && !facts.loss_bad) return verdict;
  verdict.kind = LateVerdict::Kind::kAlarm;
  verdict.sink = facts.loss_bad ? SinkKind::kLoss : SinkKind::kGradient;
  verdict.harmless = facts.loss_bad && !bad_gradient;
  return verdict;
}

}  // namespace finitude::decide
