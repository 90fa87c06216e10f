#include "explain/made.h"

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

}  // namespace finitude::explain
