// Whether what looks like a batch is one: do its rows stay apart on the way to a call?
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "capture/tape.h"
#include "replay/batch_inputs.h"

namespace finitude::replay {

enum class Reach {
  kNot,    // or it is not certain
  kTaken,  // some of the rows are taken out before (x = data[index], data[i:j]), and those do
  kRows,
};

// Do they reach the call `entry`: does it read or make a tensor with a dimension of which each index belongs to one of
// the `rows` rows of the inputs? Not where they went into a part of something else (x[4] = row), were added to every
// row of it (a bias), or were summed over (a weight). What the call makes may also go into the inputs before they are
// read (x[4, 2] = nan).
Reach rows_reach(const capture::Tape& tape, const std::vector<BatchInput>& inputs, std::int64_t rows,
                 std::size_t entry);

// Of each of `inputs`, of `rows` rows: does arithmetic set its rows against columns of something with more in it, whose
// own rows are the outer dimension there (a weight for each class, beside logits; a position, beside sequences)? Then
// they are none of the samples. `others`: all that may be the batch, by their number of rows; what the step takes out
// of it counts too. What a loader gave is never set aside.
std::vector<bool> lie_crosswise(const capture::Tape& tape, const std::vector<BatchInput>& inputs, std::int64_t rows,
                                const std::vector<std::pair<std::int64_t, BatchInput>>& others);

}  // namespace finitude::replay
