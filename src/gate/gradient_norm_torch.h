// The 2-norm of all gradients of an optimizer, from the looks that the gate has taken at them.
#pragma once

#include "gate/state_torch.h"
#include "observe/gradient_look_torch.h"

namespace finitude::bindings {

// Negative: one of them was not read (on a GPU), or none has a gradient.
inline double norm_of_marks(const OptimizerEntry& entry) noexcept { return observe::norm_of_all(entry.marks); }

}  // namespace finitude::bindings
