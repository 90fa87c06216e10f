// How far two tensors are apart: element by element where the values are there, else by their statistics.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "compare/number.h"
#include "finitude/health.h"

namespace finitude::compare {

struct Distance {
  bool known = false;  // anything could be compared
  bool exact = false;  // by element; else by statistics, a lower bound
  bool same_bits = false;
  Number number = Number::kOther;   // the coarser of the two formats: its ulps
  std::uint64_t elements = 0;       // compared reals
  std::uint64_t differing = 0;      // not equal as numbers, NaN among them
  std::uint64_t nan_in_one = 0;     // NaN on one side only
  std::uint64_t nan_in_both = 0;    // never equal, and no difference between the two either
  std::uint64_t infinite = 0;       // an infinity against something else than the same
  std::uint64_t max_ulps = 0;       // of finite pairs
  double max_abs = 0, max_rel = 0;  // of finite pairs; relative to the larger magnitude
  double scale = 0;                 // largest finite magnitude in both
  std::int64_t worst = -1;          // row-major index: of a NaN in one first, of an infinity, of the largest |a - b|
  double a = 0, b = 0;              // the values there
  std::vector<std::int64_t> rows;   // of dimension 0 that differ; at most 8

  // |a - b| against the size of the whole tensor.
  double relative() const noexcept { return scale > 0 ? max_abs / scale : 0; }
  bool broken() const noexcept { return nan_in_one + infinite != 0; }
};

// `reals` numbers of each, contiguous; `row` of them to a row (0: no rows). Values of different formats are
// compared in the coarser one. Zeros of both signs are equal.
Distance distance(const char* a, Number of_a, const char* b, Number of_b, std::uint64_t reals, std::uint64_t row = 0);

// What the statistics say. Only of tensors of as many elements.
Distance distance(const sense::Health& a, Number of_a, const sense::Health& b, Number of_b);

}  // namespace finitude::compare
