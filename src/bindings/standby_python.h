// What is recorded ahead of an alarm, as Python sees it.
#pragma once

#include <pybind11/pybind11.h>

namespace finitude::bindings {

void define_standby(pybind11::module_& m);

}  // namespace finitude::bindings
