// What a command reads where no path was named: the newest run in the folder of runs, or what it holds.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace finitude::cli {

enum class Wanted {
  kRun,
  kCapsule,    // the newest of the newest run that has one
  kRecording,  // a run whose report holds a trace, or else its newest capsule
};

// FINITUDE_RUNS, or finitude-runs. Never begins like an option.
std::string runs_folder();

// The same as a path from the root, for messages.
std::string shown_folder(const std::string& folder);

// The folders of runs in it, the newest first; at most kMaxEntries of incident/run_folder.h are looked at. *all, where
// not null: whether these were all. Empty where it is no folder or cannot be read.
std::vector<std::string> runs_in(const std::string& folder, bool* all = nullptr);

// So many paths, the newest first; empty where there are fewer.
std::vector<std::string> newest(Wanted wanted, std::size_t count);

// The newest, after a note that says which it is. Empty: there is none, and a complaint says what was looked at.
std::string take_newest(Wanted wanted, const Console& console);
// Likewise of two, the older first.
std::vector<std::string> take_newest_two(Wanted wanted, const Console& console);

// What was looked at where nothing was found, and what was expected there. what: "run", "capsule", ...
std::string nothing_found(const std::string& folder, const std::string& what);

}  // namespace finitude::cli
