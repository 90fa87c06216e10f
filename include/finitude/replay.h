// Replays a capsule with libtorch: issues the calls of the step again and compares every bit of the results. Link
// Finitude::torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "finitude/export.h"
#include "finitude/status.h"

namespace finitude {

// How to replay. The defaults compute the step as it was recorded.
struct ReplayOptions {
  // Threads of torch for the replay. 0: as many as when the step was recorded.
  int threads = 0;
  // Use deterministic kernels only. A call that has none fails the replay.
  bool deterministic = false;
  // Namespaces of operators that may be called in addition to "aten". A tape that needs another one is kCannot.
  std::vector<std::string> allow;
};

// One tensor that the step computed, compared with the recorded one.
struct ReplayOutcome {
  // "gradient", "head.weight"
  std::string kind, name;
  // True: every bit is the same.
  bool same = false;
};

// Result of a replay.
struct Replay {
  // A replay that has not the recorded bits is run up to three times.
  enum class Verdict : std::uint8_t {
    // Every bit is the recorded one.
    kIdentical,
    // Other bits, but the same results are non-finite.
    kSameClass,
    // Three runs agree with each other and not with the recording.
    kPersistent,
    // The bad values did not come again.
    kTransient,
    // The runs differ from each other.
    kOrderDependent,
    // The tape has no results to compare.
    kNothing,
    // A call failed.
    kFailed,
    // Operators are missing here or not allowed. Nothing was called.
    kCannot,
  };
  Verdict verdict = Verdict::kFailed;
  // The verdict in words, for people. Lists what differs, or why the replay stopped.
  std::string text;
  // Of the first run. Empty if it did not run to the end of the tape.
  std::vector<ReplayOutcome> outcomes;
  // Calls that the first run issued.
  std::uint64_t calls = 0;
  // Time of these calls, in seconds.
  double seconds = 0;
  // Did the step fail here as it failed when it was recorded?
  bool reproduced() const noexcept { return verdict == Verdict::kIdentical || verdict == Verdict::kSameClass; }
};

// Replays the capsule in the folder `path`, or a tape file that holds its inputs itself. Runs on the type of device
// that the step was recorded on if torch has one here, else on the CPU. Only operators of allowed namespaces are
// called, below autograd; no code of the recorded program runs.
//
// Errors: kUnreadable and kCorrupt (as read_capsule), kInvalidArgument (`path` is a run folder, a part of a capsule, or
// a tape without its inputs), kUnsupported (a packed capsule, a redacted one, another tape version, or an exception of
// torch), kTooLarge. A step that cannot be called here is no error: see Verdict.
//
// May be called from any thread, but from one at a time per process: generators, number of threads, settings and grad
// mode of torch are changed meanwhile and put back at the end. Blocks until the replay is done, which includes work on
// a GPU. No exception leaves.
FINITUDE_API Result<Replay> replay_capsule(const std::string& path, const ReplayOptions& options = {});

}  // namespace finitude
