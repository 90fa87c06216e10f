// Issues the calls of a tape again and compares what comes out, bit by bit. Plain data; tape_player_torch.cpp
// does it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "capture/tape.h"

namespace finitude::replay {

class PlayObserver;

struct PlayOptions {
  std::vector<std::string> namespaces{"aten"};  // of operators that may be called
  int threads = 0;                              // 0: as many as there were
  // "float32" or "float64": all floating numbers are computed in it; "bfloat16": those that were float16; empty: as
  // they were.
  std::string dtype;
  // Deterministic kernels only; a call that has none fails.
  bool deterministic = false;
  // "cpu" or "cuda"; empty: as map_devices() of tape_device_torch.h has it. With a dtype always the CPU.
  std::string device;
};

// A value that a check of the program refused, in the place of the loss that the step did not come to.
inline bool is_refused_value(const std::string& kind, const std::string& name) {
  return kind == "loss" && name != "loss" && !name.empty();
}

struct PlayedOutcome {
  std::string kind, name;
  std::uint64_t expected = 0, got = 0;  // checksums
  capture::Flaws expected_flaws, got_flaws;
  std::string got_sample;  // as Outcome::sample, where the bits differ and it is known
  bool same() const { return expected == got; }
};

struct Played {
  std::vector<std::string> missing;     // operators that are not here or not allowed: nothing was called
  std::string why_not;                  // the call that failed, and why; empty where the tape ran to its end
  std::size_t calls = 0;                // that were issued
  std::vector<PlayedOutcome> outcomes;  // empty where it did not run to its end
  double seconds = 0;                   // the calls alone
  bool stopped = false;                 // by the observer, after the last of `calls`
  // With another dtype: operators that were computed in the dtypes they were recorded in, and why.
  std::map<std::string, std::string> as_recorded;
  // On another type of device: operators that were computed in another way than by themselves, and how.
  std::map<std::string, std::string> otherwise;

  // The same step: it ran, and every outcome has the bits it had.
  bool identical() const;
  // What is not finite of what it came to: "loss", "gradient of head.weight". A buffer may hold an infinity on purpose.
  std::vector<std::string> bad() const;
};

// How it came out, as `replay` of capsule.json has it: "identical" or what went wrong.
std::string outcome_of(const Played& played);

// Calls only operators of the dispatcher, below autograd. Never throws. The generators and settings of this
// process are put back. A tape from elsewhere cannot read or write outside the memory that it declares, as
// far as the operators check their own arguments. One at a time.
Played play(const capture::Tape& tape, const PlayOptions& options, PlayObserver* observer = nullptr);

}  // namespace finitude::replay
