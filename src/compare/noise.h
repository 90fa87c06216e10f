// How much of a difference rounding explains. docs/diff.md states the formula for users.
#pragma once

#include <string_view>

#include "compare/distance.h"
#include "compare/run.h"

namespace finitude::compare {

// What one call may add to the distance by rounding alone: kRoundings * epsilon * sqrt(terms), of the scale
// below. Epsilon is the coarsest of the formats that either side reads or writes.
inline constexpr double kRoundings = 8;
inline constexpr double kMostTerms = 4096;  // kernels add long sums up in blocks; errors grow no further
// What calls that are not tried out may make of a difference of their inputs, relative to it.
inline constexpr double kAmplified = 64;

struct Noise {
  double epsilon = 0;
  double terms = 1;  // numbers that are added up for one element of the output
  double scale = 0;  // size of a sum of that many terms, where results may cancel: 0: the results' own size

  double relative() const noexcept;
  // The largest |a - b| that is rounding, of a tensor whose largest magnitude is `largest`.
  double bound(double largest) const noexcept;
};

Noise noise_of(const Call& a, const Call& b);
Noise noise_of(const Call& call);
Noise merge(const Noise& a, const Noise& b);

enum class Level { kUnknown, kSame, kNoise, kDiffers };
// NaN or an infinity on one side is never noise; NaN on both is no difference between them. A difference of
// integers is none of rounding.
Level level(const Distance& distance, double bound) noexcept;
std::string_view word(Level level) noexcept;

}  // namespace finitude::compare
