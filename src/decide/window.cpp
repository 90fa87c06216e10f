#include "decide/window.h"

#include <algorithm>

namespace finitude::decide {

std::string_view report_word(SinkKind kind) noexcept {
  switch (kind) {
    case SinkKind::kLoss:
      return "loss";
    case SinkKind::kGradient:
    case SinkKind::kGradOutput:
      return "gradient";
    case SinkKind::kParameter:
      return "parameter";
    case SinkKind::kState:
      return "state";
    case SinkKind::kBuffer:
      return "buffer";
  }
  return "gradient";
}

// The quotations are from docs/contract.md, "When a step is an alarm".
Verdict judge(const WindowFacts& facts) noexcept {
  Verdict verdict;
  // "also when clipping or clamping made it finite": a clamped gradient is a bad one.
  const bool bad_gradient = facts.bad_gradients != 0 || facts.clamped != 0;
  // "a bad loss belongs to the first step() of an optimizer that owns a gradient written in that backward; the
  // others are vetoed only for their own gradients".
  std::size_t first = kNoLoss;
  bool all_gradients_were_bad = true, grad_argument_bad = false;
  for (std::size_t i = 0; i < facts.losses.size(); ++i) {
    const LossFact& loss = facts.losses[i];
    grad_argument_bad |= loss.grad_bad;
    if (!loss.bad || !loss.owned) continue;
    if (first == kNoLoss) first = i;
    all_gradients_were_bad &= loss.gradients_were_bad;
  }
  const bool bad_loss = first != kNoLoss;

  // "everything finite, yet ruined (clipped to zero by an overflowed norm ...)": an advisory, never a veto.
  verdict.norm_overflow_advisory = facts.norm_overflow && !bad_gradient;

  if (!bad_gradient && !bad_loss) {
    // "persistent buffer: NaN, in elements that were finite at the last good step": an alarm.
    if (facts.buffers_turned_nan) {
      verdict.kind = Verdict::Kind::kAlarm;
      verdict.sink = SinkKind::kBuffer;
      return verdict;
    }
    // A loss of another optimizer, or a parameter that got no gradient, is nothing that the script put right.
    if (facts.laundered == 0 && facts.dropped == 0) return verdict;
  }

  // "the script zeroed, replaced or nan_to_num-ed the bad gradients, or skipped step for that window": advisory
  // handled-by-script, counted. One window is one time, however many gradients it had.
  if (!bad_gradient && (!bad_loss || all_gradients_were_bad)) {
    verdict.kind = Verdict::Kind::kHandledByScript;
    verdict.times = std::max<std::uint32_t>(1, facts.dropped);
    return verdict;
  }

  // "step() is reached with a non-finite loss in its window, or with an owned gradient that was non-finite before
  // clipping": an alarm. "Where only the loss is bad and every owned gradient is finite, it is an alarm that is
  // harmless".
  verdict.kind = Verdict::Kind::kAlarm;
  verdict.harmless = bad_loss && !bad_gradient;
  if (bad_loss) {
    verdict.sink = SinkKind::kLoss;
    verdict.loss = first;
    verdict.micro_batch = facts.losses[first].micro_batch;
  } else {
    // "a non-finite grad argument is a gradient sink named grad_output".
    verdict.sink = grad_argument_bad ? SinkKind::kGradOutput : SinkKind::kGradient;
  }
  return verdict;
}

}  // namespace finitude::decide
