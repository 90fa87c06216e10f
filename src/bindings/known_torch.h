// What was not finite when an alarm was reported, for the Python side.
#pragma once

#include <pybind11/pybind11.h>

namespace finitude::bindings {

void define_known(pybind11::module_& m);

}  // namespace finitude::bindings
