#include "explain/made.h"

#include <algorithm>

#include "explain/origin.h"

namespace finitude::explain {

std::optional<Made> made_of(const record::Trace& trace, const record::TensorUse& use) {
  constexpr int kMaxCopies = 16;
  const record::TensorUse* at = &use;
  auto reader = static_cast<record::OpId>(trace.ops.size());
  std::optional<Made> made;
  for (int copies = 0; copies < kMaxCopies && at != nullptr; ++copies) {
    const record::OpId id = producer(trace, reader, *at);
    if (id == record::kNone) break;
    const record::Op& op = trace.ops[id];
    made = Made{id, op.allocates};
    if (op.allocates || !is_carrier(op)) break;
    at = carried(op);
    reader = id;
  }
  return made;
}

record::OpId allocation_of(const record::Trace& trace, const record::TensorUse& use) {
  const auto gives = [&](const record::Op& op) {
    return op.allocates && std::ranges::any_of(op.outputs, [&](const auto& out) { return out.storage == use.storage; });
  };
  const auto found = std::ranges::find_if(trace.ops, gives);
  if (use.storage == record::kNone || found == trace.ops.end()) return record::kNone;
  return static_cast<record::OpId>(found - trace.ops.begin());
}

}  // namespace finitude::explain
