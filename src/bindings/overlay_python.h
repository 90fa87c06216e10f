// Directories overlaid for a second process, as Python functions.
#pragma once

#include <pybind11/pybind11.h>

namespace finitude::bindings {

void define_overlay(pybind11::module_& m);

}  // namespace finitude::bindings
