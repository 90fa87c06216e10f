// The tensors of a captured step that hold a sample in each row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "capture/tape.h"
#include "record/trace.h"

namespace finitude::replay {

struct BatchInput {
  capture::StorageId storage = 0;
  std::size_t begin = 0, row_bytes = 0;  // in the storage; row after row
  // The first entry that takes it, filled as it is by then: as its argument `arg`, of several tensors in that the one
  // numbered `item`.
  std::size_t read_at = 0, arg = 0, item = 0;
  bool loaded = false;                    // a DataLoader handed it over
  bool as_index = false;                  // it says which rows of something else are taken (a permutation)
  std::size_t item_bytes = 0;             // of one element
  std::vector<std::int64_t> row_sizes{};  // of a sample, in row-major order; one number where its shape is not known
};

// By the number of rows, at least 2. Inputs that nobody named but as a batch, a batch that the step put together, and
// what was made before the first backward call out of nothing else: by operators that take no tensor, or by the host.
// The tape knows a tensor as operators read it, a linear layer with the steps of its sequences folded into the rows;
// the trace that was taken along with it, where there is one, as the program had it first.
std::map<std::int64_t, std::vector<BatchInput>> batch_inputs(const capture::Tape& tape,
                                                             const record::Trace* trace = nullptr);

}  // namespace finitude::replay
