// Which outputs of an op are writes, and which inputs each of them depends on.
#pragma once

#include <cstdint>
#include <vector>

#include "record/trace.h"

namespace finitude::locate {

struct Write {
  const record::TensorUse* use;
  std::uint32_t member = 0, list_size = 0;  // list ops: position in its list and the length of that
  bool assumed = false;                     // an input known to be written whose new values were not recorded
};

// Outputs that are not views of unchanged data; for ops without children also written inputs that no output
// shows.
std::vector<Write> writes_of(const record::Op& op, bool has_children);

// List ops: for every input its position in its list and the length of that list.
struct Member {
  std::uint32_t index = 0, size = 0;
};
std::vector<Member> members(const std::vector<record::TensorUse>& uses);

}  // namespace finitude::locate
