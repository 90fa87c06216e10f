// Dumps of the ranks of one step as one dump: parts of a tensor that several ranks hold, or several calls with parts of
// the batch, are put together. So runs with other layouts (tensor parallel, pipeline, sharded data parallel) compare
// with one another and with a single process.
#pragma once

#include <vector>

#include "compare/record_match.h"
#include "compare/record_pairs.h"

namespace finitude::compare {

inline constexpr std::size_t kMostJoinedRanks = 1024;

struct JoinCounts {
  std::size_t ranks = 0;
  std::size_t joined = 0;    // values made of several parts
  std::size_t other = 0;     // of one shape on all ranks with other bits: the first rank's is taken
  std::size_t unjoined = 0;  // values whose parts do not make a whole: not compared
  std::size_t skipped = 0;   // records that are not compared: see joined_parts
};

struct JoinedDump {
  Dump dump;
  JoinCounts counts;
};
struct JoinedSides {
  JoinedDump a, b;
};

// A DTensor says which part it is (RecordValue::begins). Of other tensors the shape of the same value on the other side
// says it: parts with other bits lie along the dimensions that are smaller here, calls before ranks, in row-major order
// of these dimensions.
// Skipped are modules of which the ranks hold other parts (the stages of a pipeline), and gradients of what modules
// return where ranks or calls have parts of the batch: the loss is a mean over the part then.
// a, b: in the order of ranks, at least one of each. `map` names modules of A as B calls them. What is skipped on one
// side is skipped on both.
JoinedSides join_parts(const std::vector<Dump>& a, const std::vector<Dump>& b, const NameMap& map);

}  // namespace finitude::compare
