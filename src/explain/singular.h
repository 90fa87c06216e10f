// Ops with an operand at which they have no finite value: log at 0, x / 0, sqrt below 0, and derivatives at
// an edge.
#pragma once

#include <optional>
#include <string>

#include "explain/evidence.h"

namespace finitude::explain {

enum class PointKind {
  kLog,     // log at 0, log1p at -1, xlogy, logit
  kDivide,  // a denominator of 0: div, reciprocal, rsqrt, a negative power
};

// An operand that holds the point itself.
struct Point {
  PointKind kind;
  Operand operand;
  std::string arg;
  double edge = 0;  // the value at which the op has none: 0, 1 or -1
};

// Reads the op's own statistics; nothing where the op is not of such a family, or no operand is at its point.
std::optional<Point> find_point(const record::Op& op);

// Forward-mode differentiation computes derivatives inside the call itself: the innermost call around this op whose
// value is finite and whose derivative has an edge where its argument is, as sqrt at 0. kNone: the op is part of none.
record::OpId differentiated(const record::Trace& trace, record::OpId op);

// "the derivative of sqrt", "the second derivative of linalg_det": of what the program wrote, where the node that the
// birth lies in is known to be the derivative of that; else empty.
std::string derivative_of(const Scene& scene);
// Is the birth in the derivative of a derivative?
bool is_of_higher_order(const Scene& scene);

// The floor below which a clamp of this format would itself be 0 or explode on division.
double safe_floor(sense::DType dtype);

}  // namespace finitude::explain
