// The operations of a trace as a dump holds them: as op_table (findings.h) has them, without what is zero or empty,
// and written as text at once. A dump is written while the program trains.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "record/trace.h"

namespace finitude::show {

struct RowParts {
  bool inputs = true, outputs = true, stacks = false;
  std::size_t most_ops = 0, most_bytes = 0;  // of the text
};

struct OpRows {
  std::string text;     // a JSON array
  std::size_t ops = 0;  // how many are in it: the first of those that were asked for
};

OpRows op_rows(const record::Trace& trace, std::span<const record::OpId> ops, const RowParts& parts);

}  // namespace finitude::show
