// Plays a capsule on every CPU core, or every GPU, by processes of its own: what judge_cores() of core_votes.h judges.
#pragma once

#include <string>
#include <vector>

#include "replay/core_votes.h"

namespace finitude::replay {

// Standard error is a terminal that can rewrite a line.
bool is_seen_at_once();

struct CoreTest {
  std::string player;  // path of finitude-replay
  std::string capsule;
  std::vector<std::string> words;  // options of the player: "--deterministic"
  std::vector<int> cores;          // by number; one process on each, with one thread
  int devices = 0;                 // not 0: on so many GPUs instead
  std::size_t times = 1;
  double seconds = 600;         // for all of it
  bool shows_progress = false;  // on standard error, a line that is gone afterwards
};

struct CoreRun {
  std::vector<CorePlays> cores;  // each that was to be played, in order
  std::string stopped;           // not empty: why it ended early, "the time was up"
};

// The first process plays alone: what memory it takes says how many there can be at once. SIGINT, SIGTERM and SIGHUP
// end it; meanwhile they have no other effect on this process. One at a time. No process is left behind.
CoreRun play_on_cores(const CoreTest& test);

// The process of one core: its part of the protocol. Puts the calling thread on the core (below 0: anywhere), and ends
// this process where its parent ends. False: it cannot be there.
bool settle_on_core(int core);
// One line of what the process says of a play, and back; false: it is none.
std::string play_line(const CorePlay& play);
bool read_play_line(const std::string& line, CorePlay* play);

}  // namespace finitude::replay
