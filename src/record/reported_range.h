// What the range of a tensor gives away. Statistics that are to hold no value leave it out where it would: of few
// numbers, minimum, maximum and the sum of squares are the numbers themselves.
#pragma once

#include <cstdint>

#include "finitude/health.h"

namespace finitude::record {

inline constexpr std::uint64_t kFewestValues = 8;

// Fewer than kFewestValues of its elements are finite and not zero, or all of those have one magnitude (a filled
// tensor, a mask with a scale).
inline bool range_gives_values_away(const sense::Health& h) noexcept {
  const std::uint64_t values = h.finite() - h.zero;
  constexpr double kRounding = 1 - 1e-6;
  return values < kFewestValues || h.sum_sq >= kRounding * static_cast<double>(values) * h.absmax * h.absmax;
}

inline void leave_range_out(sense::Health& h) noexcept { h.min = h.max = h.absmax = h.sum_sq = 0; }

// Numbers that are not zero have no range of zeros: that is one which was skipped.
inline bool has_range(const sense::Health& h) noexcept { return h.min != 0 || h.max != 0 || h.finite() == h.zero; }

}  // namespace finitude::record
