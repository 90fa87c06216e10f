// Where a value came from: back through the trace from an op's input to the op that made it what it is.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "record/trace.h"

namespace finitude::explain {

// The last op that ended before `reader` began and wrote part of what `use` covers; the innermost one. kNone:
// none traced.
record::OpId producer(const record::Trace& trace, record::OpId reader, const record::TensorUse& use);

// The same of a bad value: not an op that wrote nothing but finite values into a part of it.
record::OpId bad_producer(const record::Trace& trace, record::OpId reader, const record::TensorUse& use);

// By all that is known of both: nothing was written between the two reads.
bool same_values(const sense::Health& a, const sense::Health& b);

// Passes values on unchanged but for rounding: views, copies, casts, gathers of existing elements.
bool is_carrier(const record::Op& op);
// Takes some elements out of a tensor, as out of a table.
bool looks_up(const record::Op& op);
// The tensor input a carrier takes its values from.
const record::TensorUse* carried(const record::Op& op);

// The op that turned finite values into a non-finite one, upstream of `use`.
struct BadOrigin {
  record::OpId op = record::kNone;            // kNone: it came from outside the trace
  record::StorageId storage = record::kNone;  // then: what carried it
  bool intended = false;                      // a number in the program (a mask, an initial value)
};
BadOrigin bad_origin(const record::Trace& trace, record::OpId reader, const record::TensorUse& use);

// How an exact 0 (or an exact 1 or -1, one step from a 0) came to be.
enum class EdgeKind {
  kGiven,         // data, a parameter, a mask, a count, a relu: a zero like any other number
  kUnderflow,     // finite non-zero inputs whose result is below the range: exp, products, powers, a cast
  kSaturated,     // a function that ends at the edge: softmax, sigmoid, tanh, exponentials over their sum
  kCancelled,     // a difference of equal numbers
  kEpsilonLost,   // 0 + epsilon, where the epsilon rounds to 0 in the format
  kRounded,       // exp of a number so near to 0 that the format has no number between it and 1
  kNumberIsEdge,  // a number of the program beside the edge, which the format rounds to it: clamp(max=1 - 1e-9)
};
struct EdgeOrigin {
  EdgeKind kind = EdgeKind::kGiven;
  record::OpId op = record::kNone;
  bool half = false;   // the op's result is in half precision
  double epsilon = 0;  // kEpsilonLost, kNumberIsEdge: the number
  double edge = 0;     // that the op itself gives: 1 where 1 - sigmoid is 0; kNumberIsEdge: what the number rounds to
};
EdgeOrigin edge_origin(const record::Trace& trace, record::OpId reader, const record::TensorUse& use, double edge);
// Of kNumberIsEdge: "1 - 1e-09 is 1 in float32".
std::string rounded_number(const record::Trace& trace, const EdgeOrigin& origin);
// What to do about that: "a number that float32 can tell from 1, such as 1 - 1e-06".
std::string distinct_number(const record::Trace& trace, const EdgeOrigin& origin);

// One call on the way back from a zero: it read zeros in `from`, or, where that is null, made them itself.
struct ZeroLink {
  record::OpId op = record::kNone;
  const record::TensorUse* from = nullptr;
};
// From the call that wrote `use` back, while each says that zeros of what it read are zeros of what it gave.
std::vector<ZeroLink> way_of_zeros(const record::Trace& trace, record::OpId reader, const record::TensorUse& use);

// x / x.sum(), also with an epsilon in the denominator: the sum; kNone: the division is another quotient.
record::OpId divides_by_own_sum(const record::Trace& trace, record::OpId id, const record::Op& division);

}  // namespace finitude::explain
