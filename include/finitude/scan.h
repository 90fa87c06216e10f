// Scans memory for non-finite values.
//
// Functions here only read. They do not allocate, lock or throw, and may be called from any thread; the memory must not
// be written meanwhile. A call does its work in the calling thread, except where Threads are passed. Memory is host
// memory: for a GPU see finitude/cuda_scan.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "finitude/dtype.h"
#include "finitude/export.h"
#include "finitude/health.h"

namespace finitude::sense {

// What the check of a healthy step needs: is anything NaN or Inf, and how close to the limit is the rest.
struct Quick {
  // At least one value is NaN or Inf.
  bool bad = false;
  // Largest magnitude if !bad, 0 of an empty tensor; unspecified if bad.
  double absmax = 0;
};

// Scans `numel` contiguous elements of `dtype` at `data`. No alignment is required. `data` may be null if numel is 0.
// numel counts elements, so a complex tensor of n elements is 2n reals. Reads the memory once and may stop at the
// first bad block. Of kOther nothing is read, and the result is the default value.
FINITUDE_API Quick quick_scan(const void* data, std::size_t numel, DType dtype) noexcept;

// All counts and ranges of the same memory. Reads it once, and reads again only the blocks that hold a non-finite
// value.
FINITUDE_API Health full_scan(const void* data, std::size_t numel, DType dtype) noexcept;

// Threads for one large scan, provided by the caller: this library starts none.
struct Threads {
  // Work to be called. It may be called from several threads at once and does not throw.
  using Work = void (*)(void* context) noexcept;
  // Has to call work(context) on as many threads at once as it can spare, and to return when all of these calls have
  // returned. The calling thread may be one of them; the scan completes in the calling thread what no other has done.
  // Null: the calling thread does all of it.
  void (*run)(Work work, void* context) noexcept = nullptr;
};

// A smaller scan ignores Threads: it is over before a second thread has begun. In bytes.
inline constexpr std::size_t kSharedScanBytes = std::size_t{1} << 20;

// The same answers, computed by several threads. They do not depend on the number of threads. sum_sq may differ in its
// last bits from that of a scan without Threads, because parts of the memory are summed separately.
FINITUDE_API Quick quick_scan(const void* data, std::size_t numel, DType dtype, Threads threads) noexcept;
FINITUDE_API Health full_scan(const void* data, std::size_t numel, DType dtype, Threads threads) noexcept;

// The definition of a right answer: one element at a time, without SIMD. Slow. Tests compare the kernels with it.
FINITUDE_API Health reference_scan(const void* data, std::size_t numel, DType dtype) noexcept;

// Scans a tensor of any layout. `sizes` and `strides` are arrays of `ndim` numbers, strides in elements; neither is
// read if ndim is 0, which is a tensor of one element. `data` is the address of the element with all indices 0, so
// that negative strides reach below it. Strides may overlap. A dimension of stride 0 (expand) is counted as often as it
// repeats, but read once. A size of 0 or less means an empty tensor. Long dense runs are scanned where they lie, and
// shared by `threads`; the rest is first copied into a buffer of 8 KiB on the stack.
FINITUDE_API Health full_scan_strided(const void* data, const std::int64_t* sizes, const std::int64_t* strides,
                                      int ndim, DType dtype, Threads threads = {}) noexcept;
FINITUDE_API Quick quick_scan_strided(const void* data, const std::int64_t* sizes, const std::int64_t* strides,
                                      int ndim, DType dtype, Threads threads = {}) noexcept;

// Index in elements of the first NaN or Inf of contiguous memory, or numel if there is none. The index of a complex
// element is that of the pair.
FINITUDE_API std::size_t first_non_finite(const void* data, std::size_t numel, DType dtype) noexcept;

// Name of the instruction set in use: "AVX3", "AVX2", "SSE4", "EMU128", "scalar" and so on; static memory. It is chosen
// once, at the first scan of the process. FINITUDE_FORCE_ISA in the environment chooses one by its name; a name that is
// unknown, or that this processor does not have, is ignored.
FINITUDE_API std::string_view chosen_isa() noexcept;

}  // namespace finitude::sense
