// The gate for gradients on a GPU, as Python functions.
#pragma once

#include <pybind11/pybind11.h>

namespace finitude::bindings {

void define_device(pybind11::module_& m);

}  // namespace finitude::bindings
