#include "locate/unwritten.h"

#include "locate/op_kinds.h"

namespace finitude::locate {

using record::kNone;
using record::Op;
using record::OpId;
using record::TensorUse;

namespace {

bool interrupted(const Op& op) {
  return op.failed && op.outputs.empty() && is_dispatcher_op(op) && op.phase == record::Phase::kBackward;
}

}  // namespace

OpId interrupted_writer(const record::Trace& trace, const Timeline& timeline, OpId reader, std::uint32_t first_seen) {
  if (reader >= trace.ops.size() || trace.ops[reader].phase != record::Phase::kBackward) return kNone;
  for (OpId id = reader; id-- > 0;) {
    const Op& op = trace.ops[id];
    if (!interrupted(op) || timeline.start[id] > first_seen) continue;  // the hook itself may have read it
    return op.parent < id && interrupted(trace.ops[op.parent]) ? op.parent : id;
  }
  return kNone;
}

OpId owner_of_result(const record::Trace& trace, const Timeline& timeline, OpId reader, std::uint32_t first_seen) {
  if (reader >= trace.ops.size()) return kNone;
  for (OpId id = reader; trace.ops[id].parent < id;) {
    id = trace.ops[id].parent;
    const Op& op = trace.ops[id];
    if (is_dispatcher_op(op) && op.name.starts_with("aten::") && timeline.start[id] < first_seen) return id;
  }
  return kNone;
}

OpId reinterpreted(const record::Trace& trace, OpId reader, const TensorUse& use) {
  if (use.dtype == sense::DType::kOther || reader > trace.ops.size()) return kNone;
  for (OpId id = reader; id-- > 0;) {
    const Op& op = trace.ops[id];
    if (!op.is_view || op.inputs.empty() || op.outputs.empty()) continue;
    const TensorUse &from = op.inputs.front(), &to = op.outputs.front();
    const bool same =
        to.storage == use.storage && from.storage == use.storage && to.begin < use.end && use.begin < to.end;
    if (same && from.dtype == sense::DType::kOther && to.dtype == use.dtype) return id;
  }
  return kNone;
}

}  // namespace finitude::locate
