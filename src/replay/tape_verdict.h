// What replays of a tape say of the step: plain data.
#pragma once

#include <string>
#include <vector>

#include "replay/tape_player.h"

namespace finitude::replay {

// So often is a step replayed whose bits come out otherwise.
inline constexpr std::size_t kRuns = 3;

enum class Verdict {
  kIdentical,       // every result has the bits it had
  kSameClass,       // other bits, but in every run the results that were non-finite are, and no others
  kPersistent,      // every run comes to the same, which is not what was recorded
  kTransient,       // what was non-finite is finite in every run
  kOrderDependent,  // the runs come to different results
  kNothing,         // the tape says nothing to compare with
  kFailed,          // a call failed
  kCannot,          // operators are missing here
};

// Of at least one run. More than one is asked for (kRuns) only where the bits of the first one differ.
Verdict judge(const std::vector<Played>& runs);
bool is_decided(const std::vector<Played>& runs);

// What is reported of them, and whether that is the exit code 0 (the same bits, or the same class of failure),
// 1 (not reproduced) or 4 (cannot be replayed here).
struct Reported {
  int code = 0;
  std::string text;
};
Reported report_runs(const std::vector<Played>& runs, const capture::Tape& tape);

}  // namespace finitude::replay
