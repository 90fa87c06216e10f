// Result of one pass over a tensor: how many values of each kind there are, and the range of the finite ones.
#pragma once

#include <cstdint>

#include "finitude/export.h"

namespace finitude::sense {

// Counts and range of a tensor. Plain data; a default value is the health of an empty tensor.
//
// Values are classified by their bits. Non-finite values are counted and never enter min, max, absmax or sum_sq: by
// IEEE 754-2019, 6.2 an operation on a NaN gives a NaN, so that one of them would make each of these statistics NaN.
// A complex tensor of n elements counts as its 2n real parts.
struct Health {
  // Reals that were looked at. 0 for DType::kOther.
  std::uint64_t numel = 0;
  // Quiet and signalling NaN together.
  std::uint64_t nan = 0;
  std::uint64_t pos_inf = 0;
  std::uint64_t neg_inf = 0;
  // +0 and -0 together.
  std::uint64_t zero = 0;
  // Magnitudes between 0 and DTypeInfo::min_normal, both excluded.
  std::uint64_t subnormal = 0;
  // Range of the finite values. All three are 0 if there are none: check finite() first.
  double absmax = 0;
  double min = 0, max = 0;
  // Sum of the squares of the finite values, in float64. Of 16-bit formats up to 16 squares, which are exact in
  // float32, are first added in float32: the relative error of that is below 2^-21.
  double sum_sq = 0;

  // +Inf and -Inf together.
  std::uint64_t inf() const noexcept { return pos_inf + neg_inf; }
  // NaN and Inf together.
  std::uint64_t non_finite() const noexcept { return nan + pos_inf + neg_inf; }
  std::uint64_t finite() const noexcept { return numel - non_finite(); }
  // True if no value is NaN or Inf. An empty tensor is ok.
  bool ok() const noexcept { return non_finite() == 0; }
};

// The health of two disjoint parts taken as one tensor. A part without finite values does not widen the range.
// Associative and commutative, except for the rounding of sum_sq. Any thread; does not allocate.
FINITUDE_API Health merge(const Health& a, const Health& b) noexcept;

}  // namespace finitude::sense
