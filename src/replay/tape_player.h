// Issues the calls of a tape again and compares what comes out, bit by bit. Plain data; tape_player_torch.cpp
// does it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "capture/tape.h"

namespace finitude::replay {

struct PlayOptions {
  std::vector<std::string> namespaces{"aten"};  // of operators that may be called
  int threads = 0;                              // 0: as many as there were
};

struct PlayedOutcome {
  std::string kind, name;
  std::uint64_t expected = 0, got = 0;
  bool same() const { return expected == got; }
};

struct Played {
  std::vector<std::string> missing;     // operators that are not here or not allowed: nothing was called
  std::string why_not;                  // the call that failed, and why; empty where the tape ran to its end
  std::size_t calls = 0;                // that were issued
  std::vector<PlayedOutcome> outcomes;  // empty where it did not run to its end
  double seconds = 0;                   // the calls alone

  // The same step: it ran, and every outcome has the bits it had.
  bool identical() const;
};

// What is told of it, one line each, and whether that is the exit code 0 (the same bits), 1 (other bits) or 4
// (cannot be replayed here).
struct Told {
  int code = 0;
  std::string text;
};
Told tell(const Played& played, const capture::Tape& tape);

// Calls only operators of the dispatcher, below autograd. Never throws. The generators and settings of this
// process are put back. A tape from elsewhere cannot read or write outside the memory that it declares, as
// far as the operators check their own arguments. One at a time.
Played play(const capture::Tape& tape, const PlayOptions& options);

}  // namespace finitude::replay
