// Scan memory for non-finite values. Reads only; no allocation, lock or exception; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "finitude/dtype.h"
#include "finitude/health.h"

namespace finitude::sense {

// What the always-on gate needs: is anything NaN or Inf, and how close to the limit is the rest.
struct Quick {
  bool bad = false;     // at least one NaN or Inf
  double absmax = 0;    // over finite values when !bad; unspecified when bad
};

// `data`: `numel` contiguous elements of `dtype`, no alignment required. One read of the memory.
// numel counts elements, so a complex tensor of n elements is 2n reals.
Quick quick_scan(const void* data, std::size_t numel, DType dtype) noexcept;

// All counts and ranges. One read, then a second look only at blocks that hold a non-finite value.
Health full_scan(const void* data, std::size_t numel, DType dtype) noexcept;

// The definition of right: one element at a time, no SIMD. Tests compare the kernels with it.
Health reference_scan(const void* data, std::size_t numel, DType dtype) noexcept;

// `sizes`/`strides` in elements, `ndim` of each; any layout, also overlapping, negative-free and zero strides (an expanded
// dimension is counted as often as it repeats). Dense inner runs go through the kernels.
Health full_scan_strided(const void* data, const std::int64_t* sizes, const std::int64_t* strides,
                         int ndim, DType dtype) noexcept;
Quick quick_scan_strided(const void* data, const std::int64_t* sizes, const std::int64_t* strides,
                         int ndim, DType dtype) noexcept;

// Index (row-major) of the first NaN or Inf of contiguous memory, or numel if there is none.
std::size_t first_non_finite(const void* data, std::size_t numel, DType dtype) noexcept;

// The instruction set in use, e.g. "AVX3", "AVX2", "SSE4", "EMU128", "scalar". Chosen once per process;
// FINITUDE_FORCE_ISA in the environment narrows the choice (an unknown name is ignored and chosen_isa() tells).
std::string_view chosen_isa() noexcept;

}  // namespace finitude::sense
