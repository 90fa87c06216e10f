// What a tensor holds, for the Python side: statistics(t) -> dict or None, checksum(t) -> int, is_finite(t) -> bool.
// Wherever its memory is; a device is waited for. copied_off(t) -> tensor or None does not wait: its values are there
// after wait_for_device(device).
#pragma once

#include <ATen/core/TensorBody.h>
#include <pybind11/pybind11.h>

#include <optional>

namespace finitude::bindings {

// The largest finite magnitude; none: it has no memory that can be read.
std::optional<double> absmax(const at::Tensor& t);
bool is_finite(const at::Tensor& t);
void define_values(pybind11::module_& m);

}  // namespace finitude::bindings
