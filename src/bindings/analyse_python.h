// What a trace says, as Python sees it.
#pragma once

#include <pybind11/pybind11.h>

namespace finitude::bindings {

void define_analyse(pybind11::module_& m);

}  // namespace finitude::bindings
