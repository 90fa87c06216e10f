// How the magnitudes of a tensor are spread over the powers of two. Torch-free; reads every value once, on one thread:
// for a few tensors of a step that is explained, not for the gate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "finitude/dtype.h"

namespace finitude::sense {

// counts[i]: values with magnitudes from 2^(first + i) to below 2^(first + i + 1). Zeros, NaN and Inf are in none.
// Starts and ends with a count that is not 0; empty where there is none.
struct Exponents {
  int first = 0;
  std::vector<std::uint64_t> counts;

  bool operator==(const Exponents&) const = default;
};

// Of dense memory on the host. The parts of a complex value count as two. No format has more than 2098 exponents.
Exponents count_exponents(const void* data, std::size_t numel, DType dtype);

}  // namespace finitude::sense
