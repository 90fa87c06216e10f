// Which call of one run represents which of the other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace finitude::compare {

// What the alignment knows of a call.
struct Key {
  std::uint64_t name = 0;  // the operator; only calls of one name are paired
  std::uint64_t form = 0;  // name, dtypes, shapes, named memory that it reads: all that is known before values
  std::uint64_t dtypes = 0, shapes = 0, memory = 0, scalars = 0, place = 0;
  std::uint64_t values = 0;  // checksum of what came out; 0: not known
  std::uint64_t reads = 0;   // checksum of what it reads; 0: not known
  double taken = 0;          // mean magnitude of what it reads; 0: not known
  double magnitude = 0;      // of what came out; 0: not known. Rounding leaves it nearly as it is
};

inline constexpr std::uint32_t kGap = 0xffffffff;

struct Row {
  std::uint32_t a = kGap, b = kGap;  // kGap on one side: inserted or missing
  bool operator==(const Row&) const = default;
};

struct AlignLimits {
  std::size_t cells = std::size_t{1} << 24;  // of a table of likeness; larger parts are cut first
  std::size_t edits = 4000;                  // that Myers' algorithm follows before anchors are tried
};

// Every call of both is in exactly one row, in order. The best likeness where the parts that differ are small;
// else the least edits (Myers, O(ND)) up to a limit, else cut at calls that occur once in each (patience).
// Time and memory are bounded: about 10^8 steps and 64 MB for 10^5 calls that have nothing in common.
std::vector<Row> align(const std::vector<Key>& a, const std::vector<Key>& b, const AlignLimits& limits = {});

}  // namespace finitude::compare
