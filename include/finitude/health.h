// What one pass over a tensor tells: how many values of each kind, and the range of the finite ones.
#pragma once

#include <cstdint>

#include "finitude/export.h"

namespace finitude::sense {

// Non-finite values are classified by their bits and counted; they never enter min, max, absmax or
// sum_sq (IEEE 754-2019, 6.2: arithmetic on a NaN would poison every later statistic).
// Complex tensors are counted as their 2 * numel real parts.
struct Health {
  std::uint64_t numel = 0;  // reals looked at
  std::uint64_t nan = 0;    // quiet and signalling
  std::uint64_t pos_inf = 0;
  std::uint64_t neg_inf = 0;
  std::uint64_t zero = 0;  // +0 and -0
  std::uint64_t subnormal = 0;
  double absmax = 0;        // over finite values; 0 if there are none
  double min = 0, max = 0;  // over finite values; 0 if there are none
  double sum_sq = 0;        // over finite values, accumulated in float64; of 16-bit formats up to 16 squares,
                            // which are exact there, are first added in float32: off by less than 2^-21 of it

  std::uint64_t inf() const noexcept { return pos_inf + neg_inf; }
  std::uint64_t non_finite() const noexcept { return nan + pos_inf + neg_inf; }
  std::uint64_t finite() const noexcept { return numel - non_finite(); }
  bool ok() const noexcept { return non_finite() == 0; }
};

// The health of two disjoint parts taken together. Associative and commutative up to the rounding of sum_sq.
FINITUDE_API Health merge(const Health& a, const Health& b) noexcept;

}  // namespace finitude::sense
