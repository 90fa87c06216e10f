// Where non-finite values were born, and how they came to a sink.
#pragma once

#include <string>
#include <vector>

#include "record/trace.h"

namespace finitude::locate {

struct Birth {
  record::OpId op =
      record::kNone;  // kNone: born outside the traced ops (data, state, memory); state: what wrote it there
  record::Phase phase = record::Phase::kForward;
  std::string kind;  // phase of the report: "forward" "backward" "optimizer" "data" "state" "memory"
  record::StorageId storage = record::kNone;  // for data/state/memory: what carried it
  record::OpId node = record::kNone;          // backward births: the node
  record::OpId forward = record::kNone;       // backward births: the forward op it belongs to
  record::OpId absorbed_by =
      record::kNone;  // forward select (where, masked_fill, index, nan_to_num...) that hid the forward value
  record::OpId first_reader = record::kNone;  // data/state/memory: the first traced op that read the bad value
  std::vector<record::OpId> path;             // from the op after the birth to the sink, in order of execution
  std::size_t sink = 0;                       // index into Trace::sinks
  std::vector<std::int64_t>
      rows;  // indices of dimension 0 of the birth's first bad output that hold a bad value, if known
  std::int64_t rows_of =
      0;  // not 0: the birth is samples that were stacked to so many, and `rows` are theirs among those
};

// What brought infinities into the step that turned out to be meant: the program drops them again, an open bound, a
// padding.
struct Meant {
  std::vector<record::StorageId> storages;  // that held them before the trace saw a write
  std::vector<record::OpId> ops;            // that handed them over from the host
  bool empty() const { return storages.empty() && ops.empty(); }
};

struct Located {
  std::vector<Birth> births;    // births[0] is the culprit; earliest executed first
  std::vector<Birth> absorbed;  // births that reached no sink
  Meant meant;
};

}  // namespace finitude::locate
