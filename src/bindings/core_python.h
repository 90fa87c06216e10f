// The torch-free core as Python classes and functions: policy, budgets, the ring of steps.
#pragma once

#include <pybind11/pybind11.h>

namespace finitude::bindings {

void define_core(pybind11::module_& m);

}  // namespace finitude::bindings
