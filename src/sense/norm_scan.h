// Is memory healthy, how large is its largest magnitude, and what is its 2-norm: one reading, for about the price of a
// quick scan. Rules as in finitude/scan.h: only reads, any thread, allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "finitude/scan.h"
#include "sense/kernels.h"

namespace finitude::sense {

struct Norm {
  bool bad = false;   // at least one value is NaN or Inf: what follows is unspecified
  double absmax = 0;  // as of Quick
  double norm = 0;    // the root of the sum of squares; of a complex tensor that of its real parts
};

// The sum is in float64; of float32 and 16-bit formats up to 16 squares are first added in float32. The relative error
// is below 2^-20. Of float64 it neither overflows nor vanishes where the norm itself does not. 8-bit formats are read
// by the slow kernel.
Norm norm_scan(const void* data, std::size_t numel, DType dtype, Threads threads = {}) noexcept;
// The layout as in full_scan_strided.
Norm norm_scan_strided(const void* data, const std::int64_t* sizes, const std::int64_t* strides, int ndim, DType dtype,
                       Threads threads = {}) noexcept;

// A part of it: to be added up, and made a norm of by norm_of.
struct Squares {
  bool bad = false;
  double absmax = 0;
  double sum_sq = 0;  // of the values times the scale
};
// scale: a power of two; other than 1 only of float64, by the scalar kernel.
Squares squares_with(const Kernels& with, const void* data, std::size_t numel, DType dtype, double scale = 1) noexcept;
Squares squares(const void* data, std::size_t numel, DType dtype, Threads threads) noexcept;
Squares merge(const Squares& a, const Squares& b) noexcept;
// The scale with which the squares have to be added up again; 1: they are right.
double scale_of(const Squares& squares, DType dtype) noexcept;
Norm norm_of(const Squares& squares, double scale) noexcept;

}  // namespace finitude::sense
