// The words of finitude-replay and of `finitude replay`: the same.
#pragma once

#include <string>
#include <vector>

#include "replay/tape_player.h"

namespace finitude::cli {

struct ReplayOptions {
  std::string capsule;
  replay::PlayOptions play;
  int times = 1;
  bool step_through = false, report = false, check = false;
  std::string stop_at, break_at;  // a call: its index, a name, or name#k
  std::string save_tensors, script;
  std::vector<std::string>
      imported;  // modules of Python that the caller has imported: reported to a script that needs them
  std::vector<std::string>
      libraries;  // of operators, to be loaded first: what the caller names, never what a capsule does
};

// Empty, or what is wrong with the words.
std::string parse_replay(const std::vector<std::string>& words, ReplayOptions* options);

// Of the program that is called so.
std::string replay_usage(const std::string& program);

}  // namespace finitude::cli
