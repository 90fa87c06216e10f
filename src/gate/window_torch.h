// Judging one window: losses noted at backward, gradients scanned once before anything changes them.
#pragma once

#include <optional>

#include "gate/state_torch.h"
#include "gate/window_verdict.h"

namespace finitude::bindings {

// The kind of a sink that is one only where nothing else of the step is bad: a gradient as backward left it, before the
// script clamped it.
inline constexpr char kLeftByBackward[] = "gradient before clamping";
// After it: the scan of optimizers whose window is expected to be complete.
void before_backward();
void after_backward();

// `may_be_late`: the verdict on gradients that lie on a device need not be known before the optimizer steps.
bool judge_window(OptimizerEntry& entry, WindowVerdict* verdict, bool may_be_late = false);
// The step before the one that a second process explains is about to be applied: its trace begins. True: it has.
bool begin_trace_of_target(const OptimizerEntry& entry);
// `may_hook`: false where torch is walking over the optimizer's hooks already. False: with a Python error, of a handler
// of a signal that ran meanwhile; the step is committed all the same.
bool commit_window(OptimizerEntry& entry, const WindowVerdict& verdict, double lr, bool may_hook = true);
// Into the ring of steps, which is there, with the time of now.
record::StepRecord push_now(record::StepRecord step) noexcept;
// One record into the ring of steps (record::StepFlags), before the window is closed; returned where it was written.
std::optional<record::StepRecord> record_step(const OptimizerEntry& entry, const WindowVerdict& verdict, double lr,
                                              std::uint32_t flags) noexcept;
// After the step that `commit_window` let through: the next window starts here where the step could be undone. False:
// as commit_window.
bool finish_commit(OptimizerEntry& entry);
void close_window(OptimizerEntry& entry);

}  // namespace finitude::bindings
