// Every bad value of a trace, in order of time, with what explains it.
#pragma once

#include <cstdint>
#include <vector>

#include "locate/dataflow.h"
#include "locate/timeline.h"
#include "record/trace.h"

namespace finitude::locate {

// A write that left bad values behind, or bad values that were there without one.
struct Event {
  enum class From : std::uint8_t {
    kOp,      // op wrote them
    kOrigin,  // in the storage before any traced op wrote it
    kAlloc,   // op allocated the memory and nobody wrote it
    kUnseen,  // appeared in memory with no recorded write
  };
  From from = From::kOp;
  Kinds kinds = 0;
  Labels label = 0;
  bool birth = false;       // nothing before it explains it
  bool into_state = false;  // a birth: brought into a parameter, optimizer state or buffer from outside
  bool assumed = false;     // the values after the op are not known; counts only if a reader finds them bad
  record::OpId op = record::kNone;
  record::StorageId storage = record::kNone;
  const record::TensorUse* use = nullptr;  // what was written, or read first; owned by the trace
  std::uint32_t moment = 0;
  std::uint32_t first_source = 0, num_sources = 0;
  record::OpId first_reader = record::kNone;  // not for kOp: the first op that read it, innermost
  LayerId layers_before = 0;                  // its sources lie below this layer
};

struct Range {
  std::uint32_t begin = 0, count = 0;
};

struct Flow {
  Timeline timeline;
  std::vector<Event> events;  // in order of time
  std::vector<Layer> layers;
  std::vector<Source> sources;
  std::vector<Range> op_reads;    // per op: what explains its bad inputs
  std::vector<Range> sink_reads;  // per sink
};

}  // namespace finitude::locate
