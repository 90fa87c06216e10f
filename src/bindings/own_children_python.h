// Processes that we start and the program does not hear of, for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace finitude::bindings {

void define_own_children(pybind11::module_& m);

}  // namespace finitude::bindings
