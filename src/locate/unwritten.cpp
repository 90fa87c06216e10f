#include "locate/unwritten.h"

#include <algorithm>

#include "locate/op_kinds.h"

namespace finitude::locate {

using record::kNone;
using record::Op;
using record::OpId;
using record::TensorUse;

namespace {

constexpr std::uint32_t kMaxNesting = 10'000;  // deeper chains of parents are not followed

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

OpId raw_writer(const record::Trace& trace, const Timeline& timeline, OpId reader, const TensorUse& use,
                std::uint32_t since) {
  if (reader == kNone) return kNone;
  const auto is_part = [&](const TensorUse& other) {
    return other.written && other.storage == use.storage && other.begin < use.end && use.begin < other.end;
  };
  std::uint32_t depth = 0;
  for (OpId id = parent_of(trace, reader); id != kNone && depth < kMaxNesting; id = parent_of(trace, id), ++depth) {
    const Op& op = trace.ops[id];
    if (is_dispatcher_op(op) && (timeline.start[id] < since || std::ranges::any_of(op.inputs, is_part))) return id;
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
