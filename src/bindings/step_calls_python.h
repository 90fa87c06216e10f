// Units of work as Python functions: what python/finitude/session/step_calls.py calls.
#pragma once

#include <pybind11/pybind11.h>

namespace finitude::bindings {

void define_units(pybind11::module_& m);

}  // namespace finitude::bindings
