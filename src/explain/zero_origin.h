// Where the zero comes from at which an operator has no value: a table that a look-up reads, a function that cuts
// numbers off, or something that has a name.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "explain/evidence.h"

namespace finitude::explain {

// The zero is what a division by Inf gave: the birth of that Inf, which is the cause, and how one led to the other.
struct InfiniteDivisor {
  std::size_t birth;
  std::string then;
};
std::optional<InfiniteDivisor> infinite_divisor(const Evidence& evidence);

// Into the text of a finding about such a zero that does not say it already: "; the zero is read from alpha_bar, ...".
void report_zero_origin(Finding& finding, const Evidence& evidence);

}  // namespace finitude::explain
