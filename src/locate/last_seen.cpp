#include "locate/last_seen.h"

#include <algorithm>
#include <utility>

#include "locate/op_kinds.h"

namespace finitude::locate {
namespace {

using record::kNone;
using record::Op;
using record::OpId;
using record::TensorUse;

const TensorUse* with(const std::vector<TensorUse>& uses, Kinds kinds) {
  const auto found = std::ranges::find_if(
      uses, [&](const TensorUse& use) { return use.storage != kNone && (kinds_of(use.health) & kinds) != 0; });
  return found == uses.end() ? nullptr : &*found;
}

// Of the program's own calls: what backward and an optimizer do is seen by the gate.
bool is_of_program(const Op& op) {
  const bool forward = op.phase == record::Phase::kForward || op.phase == record::Phase::kData;
  return op.parent == kNone && !op.is_node && !op.allocates && forward;
}

bool sink_last_of(record::Trace* trace, Kinds kinds) {
  for (OpId id = static_cast<OpId>(trace->ops.size()); id-- > 0;) {
    const Op& op = trace->ops[id];
    if (!is_of_program(op)) continue;
    record::Sink sink{"loss", "a value", {}, 0, op.micro_batch};
    if (const TensorUse* given = with(op.outputs, kinds)) {
      sink.value = *given;
      sink.at_end_order = op.end_order + 1;
    } else if (const TensorUse* read = with(op.inputs, kinds)) {
      sink.value = *read;
      sink.at_end_order = op.end_order == 0 ? kNone : op.end_order;
    } else {
      continue;
    }
    trace->sinks.push_back(std::move(sink));
    return true;
  }
  return false;
}

}  // namespace

bool sink_last_seen(record::Trace* trace) {
  return sink_last_of(trace, kNan | kPosInf) || sink_last_of(trace, kNegInf);
}

}  // namespace finitude::locate
