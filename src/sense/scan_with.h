// The scans with a given set of kernels, so that every instruction set of a machine can be tested on it.
#pragma once

#include "sense/kernels.h"
#include "finitude/scan.h"

namespace finitude::sense {

Quick quick_scan_with(const Kernels& with, const void* data, std::size_t numel, DType dtype) noexcept;
Health full_scan_with(const Kernels& with, const void* data, std::size_t numel, DType dtype) noexcept;

}  // namespace finitude::sense
