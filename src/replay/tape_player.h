// Issues the calls of a tape again and compares what comes out, bit by bit. Plain data; tape_player_torch.cpp
// does it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "capture/tape.h"

namespace finitude::replay {

class PlayObserver;

// All ranks of a step play their tapes at once, and issue its collective operations again between them.
struct Together {
  std::map<std::string, std::string> groups;  // by the name of a process group on the tape that of its like here
  int limit_s = 60;                           // how long another rank is waited for
};

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
  std::optional<Together> together;
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

// A collective operation in a replay of all ranks together.
struct PlayedExchange {
  enum How : std::uint8_t {
    kSame,       // issued again, and all that was read of it has the bits that were recorded
    kOtherBits,  // issued again
    kUnread,     // issued again; nothing read what it gave
    kRecorded,   // not issued: its recorded result was taken
  };
  std::string name;  // with the line of the program: "c10d::allreduce_ at train.py:12"
  How how = kUnread;
  std::string why;  // kRecorded
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
  std::vector<PlayedExchange> exchanges;  // where all ranks play together, in the order in which they were issued
  bool waited = false;                    // why_not is of another rank: it did not come, or its connection broke
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
