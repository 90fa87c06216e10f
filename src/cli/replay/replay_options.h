// The words of finitude-replay and of `finitude replay`: the same.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "replay/tape_player.h"

namespace finitude::cli {

struct ReplayOptions {
  std::string capsule;
  replay::PlayOptions play;
  int times = 0;  // 0: as often as usual, once
  bool step_through = false, report = false, check = false;
  bool stress = false, unfused = false;
  int timeout = 0;                // seconds, of --stress and --perturb; 0: as usual
  std::string perturb, at;        // how calls are computed otherwise, and which
  std::optional<int> on_core;     // of a process of --stress: on which core it plays; below 0: on any
  std::string player;             // path of finitude-replay, for --stress; empty: this program
  bool shows_progress = true;     // on standard error, where that is a terminal
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
