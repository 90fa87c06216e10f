// A step whose gradients lie on a device that the host runs ahead of: how it can be kept from being applied, and what
// its verdict is when it becomes known. Facts in, decision out; no state, and nothing here knows CUDA.
#pragma once

#include <cstdint>

#include "decide/policy.h"

namespace finitude::decide {

enum class Way : std::uint8_t {
  kOut,    // not looked at: a graph is being captured, or there is nothing to look with
  kWatch,  // scanned, and applied whatever comes out: the verdict is read later
  kFlag,   // the optimizer's own kernel leaves the step out where the device finds it bad; the verdict is read later
  kWait,   // the host waits for the verdict, then vetoes as on the CPU
};

struct DeviceStep {
  bool can_scan = true;       // the library is there and its last call succeeded
  bool capturing = false;     // into a graph
  bool wants_answer = false;  // the host has to know now: something else is bad, a second run, a closure, an undo copy
  bool vetoes = true;         // the policy leaves bad steps out (not `warn`)
  std::uint32_t devices = 1;  // that gradients of this optimizer lie on
  bool has_cpu_gradients = false;
  bool kernel_takes_flag =
      false;  // Adam, AdamW, SGD or Adagrad of torch.optim itself, each group fused and none differentiable
  bool every_state_exists =
      false;  // for each parameter with a gradient: a skipped first step would leave garbage or new entries
  // A flag that is there already, a GradScaler's: ours can be joined to it only where it is one float32 on the same
  // device.
  bool has_foreign_flag = false, foreign_flag_fits = false;
};

Way choose_way(const DeviceStep& step) noexcept;

// Does this policy skip a step of which only the loss is bad? Then the device has to count the loss too.
bool counts_loss(Policy policy) noexcept;

// What the device wrote about a step, when it has arrived.
struct LateFacts {
  Way way = Way::kFlag;  // kWatch or kFlag
  std::uint32_t bad_tensors = 0;
  bool loss_bad = false;         // of the losses of this window
  bool loss_counted = false;     // the flag was set by a bad loss too
  bool foreign_flag = false;     // the flag was set before we looked: a GradScaler found an overflow
  bool norm_not_finite = false;  // the gradients were clipped by a norm that is not
};

struct LateVerdict {
  enum class Kind : std::uint8_t { kHealthy, kScalerSkip, kAlarm };
  Kind kind = Kind::kHealthy;
  SinkKind sink = SinkKind::kGradient;  // kAlarm
  bool harmless = false;                // kAlarm: only the loss is bad
  bool left_out = false;       // the optimizer's kernel did not apply the step: by our flag, or by a GradScaler's
  bool norm_overflow = false;  // advisory: every gradient was finite, their norm was not
};

LateVerdict judge_late(const LateFacts& facts) noexcept;

}  // namespace finitude::decide
