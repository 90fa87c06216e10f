// The scans with a given set of kernels, so that every instruction set of a machine can be tested on it.
#pragma once

#include "finitude/scan.h"
#include "sense/kernels.h"

namespace finitude::sense {

Quick quick_scan_with(const Kernels& with, const void* data, std::size_t numel, DType dtype) noexcept;
Health full_scan_with(const Kernels& with, const void* data, std::size_t numel, DType dtype) noexcept;

// The health of one part of a tensor, by a thread that has looked at other parts of it: `known` is what those
// held, fresh for the first, and is brought up to date. Extremes that are known need not be found again,
// which is faster. So min, max and absmax are those of all parts so far, which merge() makes no difference
// of; all else is of this part alone.
Health full_scan_part(const Kernels& with, const void* data, std::size_t numel, DType dtype, RawTotals& known) noexcept;

}  // namespace finitude::sense
