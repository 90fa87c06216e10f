// A trace and a tape of the first step, for programs in which nothing could run it again (see first_step.py): on from
// before it begins until it is over. GIL held for all of it.
#pragma once

#include <pybind11/pybind11.h>

namespace finitude::bindings {

// What was taken down of it is let go of, if anything was.
void first_step_over();

void define_first_step(pybind11::module_& m);

}  // namespace finitude::bindings
