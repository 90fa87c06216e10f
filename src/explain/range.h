// Did finite operands go beyond the range of the format, judged by how large they were.
#pragma once

#include <optional>
#include <string>

#include "explain/evidence.h"

namespace finitude::explain {

struct RangeExcess {
  bool exponential = false;  // exp and its kin: the argument is what was too large
  double argument = 0;       // exponential: its largest magnitude on the side that overflows
  double largest = 0;        // absmax over the operands
  double limit = 0;          // largest finite value of the result's format
  sense::DType dtype = sense::DType::kOther;
  bool division = false;  // a small non-zero denominator
  bool integers = false;  // a cast of integers, of which the trace has no range: `largest` is then only a lower bound
};

// Finite operands, a non-finite result, no operand at a point where the op has no value, and operands large
// enough that the result, or an intermediate one, can exceed the limit. Nothing otherwise.
std::optional<RangeExcess> find_excess(const record::Op& op);

// The name of the first argument that a call computes with, or "": copy_ also lists its target, whose old values do not
// matter.
std::string first_read(const record::Op& op);

// The same, but of a product that adds something (addmm, of a linear layer with a bias) the first factor.
std::string first_factor(const record::Op& op);

// The largest argument of exp that stays finite in this format (88.7 in float32).
double largest_exponent(sense::DType dtype);

}  // namespace finitude::explain
