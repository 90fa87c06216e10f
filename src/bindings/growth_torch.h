// How far the weights of an optimizer have grown, for the Python side: incident/growth.h.
#pragma once

#include <pybind11/pybind11.h>

namespace finitude::bindings {

void define_growth(pybind11::module_& m);

}  // namespace finitude::bindings
