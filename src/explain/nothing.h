// A denominator that is zero because there was nothing to sum up: a mask that selects no element, a group with no
// member.
#pragma once

#include <optional>
#include <string>

#include "explain/evidence.h"

namespace finitude::explain {

enum class Nothing {
  kSelected,  // the sum or mean of a mask, a count of its elements
  kLeft,      // the sum of values times a mask: exp(x) * mask
  kInGroup,   // counts that are scattered into groups
  kZeros,     // a sum of numbers that are all zero
};

// What the denominator in `use`, which is zero somewhere, says; nothing where it is no such sum.
std::optional<Nothing> sum_of_nothing(const record::Trace& trace, record::OpId reader, const record::TensorUse& use);

// Booleans, or floats that are zero or one other number and have no gradient.
bool is_mask(const record::TensorUse& use);

// ": a mean over nothing, the mask selects no element"; of one of several denominators, or of the only one.
std::string reported(Nothing nothing, bool one_of_several);

}  // namespace finitude::explain
