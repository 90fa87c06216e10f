// Two tapes compared by playing them, one after the other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "capture/tape.h"
#include "compare/judge.h"

namespace finitude::compare {

struct PlayedOptions {
  std::vector<std::string> namespaces{"aten"};
  int threads = 0;                                   // 0: as many as each had
  std::uint64_t max_bytes = std::uint64_t{1} << 30;  // of values of A that are held; beyond, statistics only
};

struct Compared {
  Run a, b;
  std::vector<Row> rows;
  std::vector<Pair> pairs;        // by row
  std::vector<Distance> results;  // by result of A, where B has one of that kind and name at the same place
  bool reproduced_a = true, reproduced_b = true;  // replayed with the bits that were recorded
  std::uint64_t values_left_out = 0;              // tensors that were compared by their statistics for want of memory
};

// Why a tape cannot be played here, with its letter, or empty. Each is played once for statistics and
// checksums; where those differ, once more for values, and calls of B are tried on the inputs of A. Never
// throws. One at a time.
std::string play_both(const capture::Tape& a, const capture::Tape& b, const PlayedOptions& options, Compared* out);

// One tape as a run: statistics and checksums, no values.
std::string play_one(const capture::Tape& tape, const PlayedOptions& options, Run* out);

}  // namespace finitude::compare
