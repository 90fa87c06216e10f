// What a tensor holds, for the Python side: statistics(t) -> dict or None, checksum(t) -> int, is_finite(t) -> bool.
// Wherever its memory is; a device is waited for.
#pragma once

#include <pybind11/pybind11.h>

namespace finitude::bindings {

void define_values(pybind11::module_& m);

}  // namespace finitude::bindings
