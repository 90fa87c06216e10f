// In which steps it is looked at what softmax is given (observe/softmax_reach_torch.h): few, because each operator of
// such a step costs about a microsecond more. GIL held for all of it.
#pragma once

#include "observe/softmax_reach_torch.h"

namespace finitude::bindings {

struct OptimizerEntry;

// A step was applied, before anybody asks for its reach: its look ends, or that of the next step begins. The first look
// comes after 4 steps, each later one after twice as many, up to 256; where no softmax was seen, up to 4096.
void look_at_reach(const OptimizerEntry& entry);
// Of the step that look_at_reach() was given last; negative where it was not looked at.
observe::SoftmaxReach reach_of_step() noexcept;
bool is_looking_at_reach() noexcept;
void forget_reach_of(const OptimizerEntry& entry) noexcept;
// Off: no step is looked at any more.
void set_reach_looks(bool on) noexcept;

}  // namespace finitude::bindings
