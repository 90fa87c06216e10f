// The objects of a class, out of all that the garbage collector tracks.
#pragma once

#include <pybind11/pybind11.h>

namespace finitude::bindings {

void define_instances(pybind11::module_& m);

}  // namespace finitude::bindings
