// A healthy step held against plays of its tape: did each operation give what it gives again on the same bytes?
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "capture/tape.h"
#include "observe/call_digest_torch.h"

namespace finitude::replay {

// What a step did, as it was recorded.
struct StepDigests {
  std::vector<observe::CallDigest> calls;  // in the order in which they began
  std::vector<at::Tensor> outcomes;        // by number of Tape::outcomes, as the program has them; undefined: not known
};

// Bytes that two tensors of one form do not have in common.
struct DifferingBytes {
  std::size_t bytes = 0, bits = 0;  // how many differ
  std::size_t first = 0, last = 0;  // offsets in the tensor
  std::uint64_t address = 0;        // of the first, in the program's memory
  // They are one run of bytes, and of this size a whole number of blocks, from a multiple of it on; 0: neither.
  std::size_t block = 0;
};
DifferingBytes differing_bytes(const at::Tensor& ours, const at::Tensor& played);

struct VerifiedStep {
  enum Kind : std::uint8_t {
    kSame,
    kNotPlayed,  // why_not says why
    kOperation,  // an operation gave other bits than it gives again on the same bytes
    kMemory,     // an operation read other bits than were written there, and no operation wrote in between
    kOutcome,    // a result has other bits than the operation that made it gave
    kUnjudged,   // only kernels whose bits differ between plays, and what follows from them, differ
  };
  Kind kind = kSame;
  std::string why_not;
  std::size_t entry = 0;                           // of the tape, of kOperation and kMemory
  std::size_t argument = 0;                        // of kMemory
  std::size_t outcome = 0;                         // of kOutcome
  DifferingBytes bytes;                            // of kOutcome
  std::size_t plays = 0, calls = 0, compared = 0;  // compared: calls with digests
  // Of kOperation, where it gives the recorded bits each time on the core of the step, and each time the same other
  // ones on another core; -1 otherwise. odd_core: which of the two a third one contradicts; -1: not known.
  int core = -1, other_core = -1, odd_core = -1;
  // Of kOperation: with so many threads, where there were others, it gives the bits of the plays, those of the step, or
  // again others, as where it adds in another order. 0: not tried.
  int other_threads = 0;
  enum Gives : std::uint8_t { kOthers, kOfPlays, kOfStep } gives = kOthers;
};

// Plays the tape once, on another core than that of the calling thread where it may run on several, and four times
// more, on either core, where a digest differs. nondeterministic: names of operators whose bits were seen to differ
// between plays; names are added. Never throws. As play() otherwise. The thread may run where it could before as it
// returns.
VerifiedStep verify_step(const capture::Tape& tape, const StepDigests& step, std::set<std::string>* nondeterministic);

}  // namespace finitude::replay
