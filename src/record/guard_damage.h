// A write out of bounds, or after memory was given back, as guard zones around tensors' memory show it.
#pragma once

#include <cstdint>

#include "record/trace.h"

namespace finitude::record {

// One damaged block, as it was first seen. Ops are those of the trace of that time; kNone: outside of it.
struct GuardDamage {
  enum Where : std::uint8_t { kBefore, kAfter, kFreed };
  Where where = kAfter;
  std::uint64_t address = 0, size_bytes = 0;  // of the block
  std::int64_t first = 0, end = 0;            // damaged bytes, from the start of the block: negative before it
  OpId made_in = kNone;                       // in which it was allocated
  OpId freed_in = kNone;                      // kFreed: in which it was given back
  OpId seen_at = kNone;                       // which began, or ended, as it was seen
  bool seen_at_end = false;                   // it ended
};

}  // namespace finitude::record
