// The windows that are open, as Python sees them: losses, gradients, verdict, counts, the ring of steps.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

#include "gate/state_torch.h"
#include "record/ring_format.h"

namespace finitude::bindings {

// What is known of this optimizer. Throws KeyError where it is not watched.
OptimizerEntry& entry_of(pybind11::handle optimizer);

// The last 32 steps of that optimizer that were applied, oldest first, gradients without the loss scale; empty without
// a ring.
std::vector<record::StepRecord> applied_steps(std::uint32_t ordinal);

void define_windows(pybind11::module_& m);

}  // namespace finitude::bindings
