// Warnings and onsets, without torch.
#pragma once

#include <pybind11/pybind11.h>

namespace finitude::bindings {

void define_signal(pybind11::module_& m);

}  // namespace finitude::bindings
