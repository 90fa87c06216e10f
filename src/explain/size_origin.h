// Which weight, buffer, input or number of the program made the operands of an overflow as large as they were.
#pragma once

#include <optional>

#include "explain/evidence.h"

namespace finitude::explain {

struct SizeOrigin {
  record::StorageId storage = record::kNone;  // kNone: a number in the program
  record::OpId read_by = record::kNone;       // the call that was given it
  double absmax = 0;
  bool is_divisor = false;  // so small that what is divided by it became large
};

// From a call whose finite operands left the range, back along the largest operand of each call to what the step began
// with, or to a small divisor that it began with; nothing where neither is found, or where the size came about on the
// way in another way (a sum, a power) or was lost.
std::optional<SizeOrigin> size_origin(const record::Trace& trace, record::OpId from, double limit);

// Into the text and advice of a finding about such an overflow: "; the size comes from head.weight, which ...".
void report_size_origin(Finding& finding, const Evidence& evidence);

}  // namespace finitude::explain
