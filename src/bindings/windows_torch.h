// The windows that are open, as Python sees them: losses, gradients, verdict, counts, the ring of steps.
#pragma once

#include <pybind11/pybind11.h>

#include "gate/state_torch.h"

namespace finitude::bindings {

// What is known of this optimizer. Throws KeyError where it is not watched.
OptimizerEntry& entry_of(pybind11::handle optimizer);

void define_windows(pybind11::module_& m);

}  // namespace finitude::bindings
