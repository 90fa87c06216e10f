#include "replay/traced_calls.h"

namespace finitude::replay {

using capture::Entry;
using record::OpId;

bool TracedCalls::stands_for(const Entry& entry, OpId op) const {
  return op < trace_.ops.size() && entry.kind == Entry::kCall && entry.number < tape_.operators.size() &&
         trace_.ops[op].name == tape_.operators[entry.number].name;
}

bool TracedCalls::is_within(OpId inner, OpId outer) const {
  constexpr int kMostDepth = 64;
  for (int depth = 0; inner < trace_.ops.size() && depth < kMostDepth; ++depth) {
    if (inner == outer) return true;
    if (trace_.ops[inner].is_node) return false;
    inner = trace_.ops[inner].parent;
  }
  return false;
}

std::optional<std::size_t> TracedCalls::entry_of(OpId op) const {
  std::optional<std::size_t> around, inside;
  std::size_t parts = 0;
  for (std::size_t i = 0; i < tape_.entries.size(); ++i) {
    const OpId traced = tape_.entries[i].traced;
    if (!stands_for(tape_.entries[i], traced)) continue;
    if (traced == op) return i;
    if (is_within(op, traced)) around = i;
    if (is_within(traced, op)) {
      inside = i;
      ++parts;
    }
  }
  return around ? around : parts == 1 ? inside : std::nullopt;
}

}  // namespace finitude::replay
