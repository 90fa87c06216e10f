// Scan memory for non-finite values. Reads only; no allocation, lock or exception; any thread. One call is
// one thread's work, but for those that are lent Threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "finitude/dtype.h"
#include "finitude/export.h"
#include "finitude/health.h"

namespace finitude::sense {

// What the always-on gate needs: is anything NaN or Inf, and how close to the limit is the rest.
struct Quick {
  bool bad = false;   // at least one NaN or Inf
  double absmax = 0;  // over finite values when !bad; unspecified when bad
};

// `data`: `numel` contiguous elements of `dtype`, no alignment required. One read of the memory.
// numel counts elements, so a complex tensor of n elements is 2n reals.
FINITUDE_API Quick quick_scan(const void* data, std::size_t numel, DType dtype) noexcept;

// All counts and ranges. One read, then a second look only at blocks that hold a non-finite value.
FINITUDE_API Health full_scan(const void* data, std::size_t numel, DType dtype) noexcept;

// Threads for one large scan, lent by the host: this library starts none. `run` calls work(context) on as
// many threads at once as it can spare, the calling one among them, and returns when all of those calls have
// returned.
struct Threads {
  using Work = void (*)(void* context) noexcept;
  void (*run)(Work work, void* context) noexcept = nullptr;  // null: the calling thread does it all
};

// Below this many bytes nobody is woken: the scan is over before a second thread has begun.
inline constexpr std::size_t kSharedScanBytes = std::size_t{1} << 20;

// The same answers by several threads. They do not depend on how many there were; sum_sq may differ in its
// last bits from that of one unshared scan, because parts of the memory are summed on their own.
FINITUDE_API Quick quick_scan(const void* data, std::size_t numel, DType dtype, Threads threads) noexcept;
FINITUDE_API Health full_scan(const void* data, std::size_t numel, DType dtype, Threads threads) noexcept;

// The definition of right: one element at a time, no SIMD. Tests compare the kernels with it.
FINITUDE_API Health reference_scan(const void* data, std::size_t numel, DType dtype) noexcept;

// `sizes`/`strides` in elements, `ndim` of each; any layout, also overlapping, negative-free and zero strides
// (an expanded dimension is counted as often as it repeats). Dense inner runs go through the kernels; threads
// share the long ones.
FINITUDE_API Health full_scan_strided(const void* data, const std::int64_t* sizes, const std::int64_t* strides,
                                      int ndim, DType dtype, Threads threads = {}) noexcept;
FINITUDE_API Quick quick_scan_strided(const void* data, const std::int64_t* sizes, const std::int64_t* strides,
                                      int ndim, DType dtype, Threads threads = {}) noexcept;

// Index (row-major) of the first NaN or Inf of contiguous memory, or numel if there is none.
FINITUDE_API std::size_t first_non_finite(const void* data, std::size_t numel, DType dtype) noexcept;

// The instruction set in use, e.g. "AVX3", "AVX2", "SSE4", "EMU128", "scalar". Chosen once per process;
// FINITUDE_FORCE_ISA in the environment narrows the choice (an unknown name is ignored and chosen_isa()
// tells).
FINITUDE_API std::string_view chosen_isa() noexcept;

}  // namespace finitude::sense
