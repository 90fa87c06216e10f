// What is known of a norm for clipping that overflowed.
#pragma once

#include "gate/live_torch.h"

namespace finitude::bindings {

// The norm of the gradients of that optimizer as it is in float64, where the last clipping of them overflowed; 0: not
// known.
double overflowed_norm(const OptimizerEntry& entry);

}  // namespace finitude::bindings
