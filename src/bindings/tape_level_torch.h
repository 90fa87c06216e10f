// --level tape: the operators of every step are recorded as it runs, without their values; where it goes bad, its tape is
// played instead of running the program's code again.
#pragma once

#include "bindings/live_torch.h"

namespace finitude::bindings {

// max_bytes: of what a step reads; a step that reads more has no tape. 0: off, and what is recorded is dropped. GIL held, as
// for all below.
void set_tape_level(std::size_t max_bytes) noexcept;

// The tape of the window in hand is dropped and another one begins here. Nothing where a second run is under way.
void tape_window_begins();
// A good step is about to be applied, and is not recorded. has_end: tape_step_ends() will be called.
void tape_step_begins(const OptimizerEntry& entry, bool has_end);
void tape_step_ends();
// An outermost backward is over.
void tape_backward_ended();
// Recording ends: somebody else records or traces, or the process is a fork.
void tape_level_rests() noexcept;
bool tape_level_on() noexcept;

}  // namespace finitude::bindings
