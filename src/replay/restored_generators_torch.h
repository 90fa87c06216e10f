// Generators that a step put back to where they had stood before, as checkpoints of activations do when they compute
// again.
#pragma once

#include <cstddef>
#include <vector>

#include "capture/tape.h"

namespace finitude::replay {

// The state in that entry is the one that the default generator of the CPU had right before that call.
struct Restored {
  std::size_t entry = 0, call = 0;  // indices into Tape::entries
};

// Plays the tape and says which of these entries, which set that generator, are of that kind.
std::vector<Restored> find_restored(const capture::Tape& tape, const std::vector<std::size_t>& entries);

// Plays the tape, whose step began with another state, and puts into those entries what the generator is put back to in
// it. False where it did not get that far.
bool follow_restored(const std::vector<Restored>& restored, capture::Tape* tape);

}  // namespace finitude::replay
