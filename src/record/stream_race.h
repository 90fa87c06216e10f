// Memory of a device that two of its streams use, and no event orders them.
#pragma once

#include <cstdint>

#include "record/trace.h"

namespace finitude::record {

struct StreamRace {
  // kUse: both use the same tensor's memory. kReuse: it was given back between the two, and handed out again: the first
  // stream may not be done with it (a missing record_stream).
  enum Kind : std::uint8_t { kUse, kReuse };
  Kind kind = kUse;
  std::uint64_t address = 0, size_bytes = 0;          // of the memory that the second one uses
  std::uint64_t first_stream = 0, second_stream = 0;  // as the device calls them; 0: the default one
  bool first_writes = false, second_writes = false;   // else it reads
  OpId first = kNone, second = kNone;                 // of the trace of that time; kNone: outside of it
  OpId given_back = kNone;                            // kReuse: within which
};

}  // namespace finitude::record
