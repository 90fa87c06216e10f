// One step, played on each core of a machine: which core computes other bits than the others? Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "replay/tape_verdict.h"

namespace finitude::replay {

// One play of the step in one thread.
struct CorePlay {
  std::vector<std::uint64_t> checksums;  // by result of the step; empty where it failed
  std::string failure;                   // not empty: why there are no results
};

struct CorePlays {
  std::string name;             // "core 5", "GPU 1"
  std::vector<CorePlay> plays;  // fewer than were asked for where the time was up
};

// What was to be played, for the text.
struct CoreTask {
  std::vector<std::string> results;     // "loss", "gradient head.weight"
  std::vector<std::uint64_t> recorded;  // checksums of them in the run
  std::size_t times = 1;                // plays of each core
  std::string kind = "core";            // or "GPU"
};

// The bits that more than half of the cores give in more than half of their plays are right; a core with a play that
// has others is named. Code 0: all have all their plays, with the same bits. 1: a core differs, or there is no
// majority. 4: nothing can be said, as plays are missing, or no core gives the same bits twice.
Reported judge_cores(const std::vector<CorePlays>& cores, const CoreTask& task);

}  // namespace finitude::replay
