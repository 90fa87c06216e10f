// The operations of a trace as a dump holds them: as op_table (findings.h) has them, without what is zero or empty,
// and written as text at once. A dump is written while the program trains. Of tensors with a checksum also that, and of
// those whose values are kept the name that they have in the file of values.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "record/kept_values.h"
#include "record/trace.h"

namespace finitude::show {

struct RowParts {
  bool inputs = true, outputs = true, stacks = false;
  std::size_t most_ops = 0, most_bytes = 0;  // of the text
};

// A tensor for the file of values: "12.aten::mm.input.0", of the first record that has it.
struct NamedValue {
  std::string name;
  const record::TensorUse* use = nullptr;
  const record::KeptValue* value = nullptr;
};

struct OpRows {
  std::string text;                // a JSON array
  std::size_t ops = 0;             // how many are in it: the first of those that were asked for
  std::vector<NamedValue> values;  // of these, each once; they point into what was given
};

// kept: of operators of the trace.
OpRows op_rows(const record::Trace& trace, std::span<const record::OpId> ops, const RowParts& parts,
               const record::KeptCalls& kept = {});

}  // namespace finitude::show
