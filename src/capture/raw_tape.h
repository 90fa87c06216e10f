// What the recorder leaves: events in the order in which they happened, unjudged. link() makes a Tape of
// them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "capture/tape.h"

namespace finitude::capture {

struct RawOperator {
  Operator name;
  std::uint64_t writes = 0;  // bit i: argument i is written
};

struct RawStorage {
  std::uint64_t size_bytes = 0;
  std::uint64_t first_seen = 0;  // number of the event that showed it first
  std::uint8_t misaligned = 0;
  bool is_input = false;         // an operator read it, or wrote it, before any operator on the tape had made it
  bool blank = false;            // of an input: overwritten as a whole before it was read
  std::uint64_t begin = 0;       // of an input: only a part is kept, from this multiple of 64 bytes on
  std::string bytes;             // that part, as it was when the step began
  std::vector<ByteRange> parts;  // of `bytes`, in order and apart: those that the step reads; empty: all
  std::uint64_t later_bytes =
      0;  // of an input whose content is reported later: how many from `begin` on; `bytes` is empty
  std::uint32_t traced = kNotTraced;  // the storage of the trace taken along
  std::string kind, name;
  std::uint8_t device = 0;  // index into RawTape::devices
};

// Events, each a byte and what follows it. Their numbers count from 1.
enum class RawEvent : std::uint8_t {
  kStart = 0,   // thread, operator, grad mode, place + 1, 1 of backward, traced op + 1, arguments
  kEnd = 1,     // number of its start, 1 where all results are reported, results
  kFill = 2,    // storage, offset, bytes: memory that no operator wrote, as it is now; traced op + 1 of its allocation,
                // if nobody did
  kRandom = 3,  // generator, state: something off the tape moved it
  kExchange = 4,  // thread, name, place + 1, 1 of backward, arguments: Exchange
};

struct RawTape {
  std::vector<std::pair<std::string, std::string>> settings;
  std::vector<RawOperator> operators;
  std::vector<RawStorage> storages;
  std::vector<Outcome> outcomes;
  std::vector<std::string> gaps;
  std::vector<std::string> refused;  // operators with values that have no place on a tape
  std::vector<Place> places;
  std::vector<std::string> devices{"cpu"};
  std::vector<GeneratorHome> generators;
  std::string events;
};

}  // namespace finitude::capture
