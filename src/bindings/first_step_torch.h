// A trace of the first step, for programs in which nothing could run it again (see first_step.py): on from before it begins until it is over.
#pragma once

#include <pybind11/pybind11.h>

namespace finitude::bindings {

void define_first_step(pybind11::module_& m);

}  // namespace finitude::bindings
