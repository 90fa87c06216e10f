#include "locate/flows_on.h"

#include <algorithm>

namespace finitude::locate {

using record::kNone;
using record::Op;
using record::OpId;
using record::TensorUse;

namespace {

bool overlaps(const TensorUse& a, const TensorUse& b) {
  return a.storage == b.storage && a.begin < b.end && b.begin < a.end;
}

bool is_within(const record::Trace& trace, OpId inner, OpId outer) {
  for (OpId id = inner, depth = 0; id < trace.ops.size() && depth < 64; id = trace.ops[id].parent, ++depth)
    if (id == outer) return true;
  return false;
}

// The operator that the program called: of the parts of one that itself is not called by it, the outermost.
OpId called_by_program(const record::Trace& trace, OpId id) {
  for (int depth = 0; depth < 64; ++depth) {
    const OpId parent = trace.ops[id].parent;
    if (parent >= id || trace.ops[parent].is_node || trace.ops[parent].name.find("::") == std::string::npos) break;
    id = parent;
  }
  return id;
}

}  // namespace

bool flows_on(const record::Trace& trace, OpId id, std::size_t output) {
  if (id >= trace.ops.size() || output == 0 || output >= trace.ops[id].outputs.size()) return true;
  const TensorUse& use = trace.ops[id].outputs[output];
  const OpId called = called_by_program(trace, id);
  if (use.storage == kNone || called == id) return true;
  const auto is_it = [&](const TensorUse& other) { return overlaps(use, other); };
  if (std::ranges::any_of(trace.ops[called].outputs, is_it)) return true;
  if (std::ranges::any_of(trace.sinks, [&](const record::Sink& sink) { return is_it(sink.value); })) return true;
  for (OpId at = id + 1; at < trace.ops.size(); ++at) {
    const Op& op = trace.ops[at];
    if (op.is_node || !std::ranges::any_of(op.inputs, is_it)) continue;
    const OpId forward = op.node < trace.ops.size() ? trace.ops[op.node].forward : kNone;
    if (op.allocates || is_within(trace, at, id) || (forward != kNone && is_within(trace, forward, called))) continue;
    return true;
  }
  return false;
}

}  // namespace finitude::locate
