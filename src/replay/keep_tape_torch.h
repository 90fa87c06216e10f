// What was recorded, kept as a capsule.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "capture/capsule.h"

namespace finitude::replay {

// The text of a line of the program; empty where it is not known. Called from the thread that asks.
using LineText = std::function<std::string(const std::string& file, std::uint32_t line)>;

// The text of each line that calls on the tape come from. null: none is reported.
void report_sources(capture::Tape& tape, const LineText& line);

struct Kept {
  std::string why_not;   // empty: it is written
  std::string replayed;  // "identical", what went wrong, or "not tried"
};

// Writes `folder` (capture::write_capsule). Steps whose inputs take at most `replay_below` bytes are replayed first;
// how that went is in `about`. start: what else the program held as the step began; its memory has to stay. Never
// throws.
Kept keep_tape(capture::Tape tape, const std::string& folder, nlohmann::json about,
               const capture::CapsuleOptions& options, std::uint64_t replay_below, const LineText& line,
               std::vector<capture::NamedTensor> start = {});

struct KeptBeside {
  std::string folder;
  std::string player;  // the program that replays; empty: none is tried
  std::string runs;    // capture::CapsuleJob
  std::uint32_t keep = 0;
  bool replay_here = false;           // where there is no player: by this thread, before anything is written
  std::function<bool()> interrupted;  // CapsuleQueue::add
};

// The same beside the program: it is waited only until `start` is copied, and until what capsules before this one hold
// in memory is within options.max_bytes, or until it is interrupted. It is written and replayed by
// capture::CapsuleQueue, which says how that came out. A step that used other devices than the CPU is replayed here,
// before; so is what is redacted. Why nothing is written, or empty.
std::string keep_tape_beside(capture::Tape tape, const KeptBeside& beside, nlohmann::json about,
                             const capture::CapsuleOptions& options, std::uint64_t replay_below, const LineText& line,
                             std::vector<capture::NamedTensor> start);

}  // namespace finitude::replay
