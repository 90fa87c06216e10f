// What is known of incidents (src/incident), for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace finitude::bindings {

void define_incident(pybind11::module_& m);

}  // namespace finitude::bindings
