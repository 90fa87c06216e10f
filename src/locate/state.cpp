#include "locate/state.h"

#include <algorithm>

#include "locate/op_kinds.h"

namespace finitude::locate {
namespace {

using record::kNone;
using record::Op;
using record::Origin;
using record::Phase;
using record::TensorUse;

// Do these reads stem from nothing but what lay in memory before the trace (a checkpoint, an array) and what was
// moved or made there as it is (a literal)? Not from a batch, from other state, or from arithmetic: that is a birth
// of its own.
bool came_from_outside(const record::Trace& trace, const Flow& flow, const std::vector<Layer>& layers, Range reads) {
  std::vector<Range> next = {reads};
  std::vector<LayerId> stack;
  std::vector<bool> seen(layers.size());
  const auto is_outside = [&](const Event& event) {
    if (event.from == Event::From::kOrigin) return trace.storages[event.storage].origin == Origin::kUnknown;
    if (event.from != Event::From::kOp) return false;
    const Op& op = trace.ops[event.op];
    const auto reads_any = [](const TensorUse& use) { return !use.written && use.health.numel != 0; };
    return (is_move(op) && !is_cast(op)) || std::ranges::none_of(op.inputs, reads_any);
  };
  while (!next.empty()) {
    const Range range = next.back();
    next.pop_back();
    for (std::uint32_t i = range.begin; i < range.begin + range.count; ++i) {
      const Source& source = flow.sources[i];
      if ((source.labels & (kDamagedGradient | kUninit)) != 0) return false;
      if ((source.labels & kDamaged) != 0) stack.push_back(source.layer);
    }
    while (!stack.empty()) {
      const LayerId id = stack.back();
      stack.pop_back();
      if (id == kNone || seen[id]) continue;
      seen[id] = true;
      const Layer& layer = layers[id];
      stack.push_back(layer.prev);
      stack.push_back(layer.other);
      if (layer.event == kNone || layer.label != kDamaged) continue;
      const Event& event = flow.events[layer.event];
      if (event.birth && !is_outside(event)) return false;
      if (!event.birth) next.push_back({event.first_source, event.num_sources});
    }
  }
  return true;
}

}  // namespace

// A parameter or optimizer state is nobody's mask: bad values that come into it between two updates, be it from a
// checkpoint or as a literal, are bad from that write on. So are a buffer's, but for what its own module keeps there.
bool ruins_state(const record::Trace& trace, const Flow& flow, const std::vector<Layer>& layers, const Op& op,
                 const Write& write, Kinds kinds, Labels labels, Range reads) {
  if ((op.phase != Phase::kForward && op.phase != Phase::kData) || write.assumed) return false;
  const bool damaged = (labels & kDamaged) != 0;
  switch (trace.storages[write.use->storage].origin) {
    case Origin::kParameter:
    case Origin::kOptimizerState:
      break;
    case Origin::kBuffer:
      if (!damaged || (op.stack < trace.stacks.size() && !trace.stacks[op.stack].module.empty())) return false;
      break;
    default:
      return false;
  }
  if ((labels & (kDamagedGradient | kUninit)) != 0) return false;
  if (damaged) return is_move(op) && came_from_outside(trace, flow, layers, reads);
  const bool given = labels != 0 || std::ranges::any_of(op.scalars, [](const auto& s) { return kinds_of(s) != 0; });
  return given && (is_move(op) || (kinds & kNan) == 0);
}

}  // namespace finitude::locate
