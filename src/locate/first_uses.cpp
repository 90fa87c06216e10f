#include "locate/first_uses.h"

#include <algorithm>

#include "locate/writes.h"
#include "record/allocating_ops.h"

namespace finitude::locate {

using record::Op;
using record::OpId;
using record::TensorUse;

namespace {

bool any_in_product(const Op& op, const std::vector<FirstUse>& found) {
  return std::ranges::any_of(
      op.outputs, [&](const TensorUse& out) { return out.storage < found.size() && found[out.storage].in_product; });
}

}  // namespace

std::vector<FirstUse> first_uses(const record::Trace& trace, const Timeline& timeline,
                                 const std::vector<bool>& has_children) {
  std::vector<FirstUse> found(trace.storages.size());
  for (OpId id = 0; id < trace.ops.size(); ++id) {
    const Op& op = trace.ops[id];
    const auto note_seen = [&](const std::vector<TensorUse>& uses, std::uint32_t moment) {
      for (const TensorUse& use : uses) {
        if (use.storage >= found.size()) continue;
        found[use.storage].first_seen = std::min(found[use.storage].first_seen, moment);
      }
    };
    note_seen(op.inputs, timeline.start[id]);
    note_seen(op.outputs, timeline.end[id]);
    for (const TensorUse& use : op.outputs) {
      if (use.storage >= found.size() || use.begin < use.end || !record::allocates(op.name)) continue;
      auto& made = found[use.storage].made_empty;
      made = std::min(made, timeline.end[id]);
    }
    for (const Write& w : writes_of(op, has_children[id])) {
      if (!lies_in_storage(*w.use, trace)) continue;
      auto& first = found[w.use->storage].first_write;
      first = std::min(first, timeline.end[id]);
    }
  }
  // Second: it needs the first write of each storage. Backwards, so that a copy is known to be in a product before its
  // source is read.
  for (OpId id = static_cast<OpId>(trace.ops.size()); id-- > 0;) {
    const Op& op = trace.ops[id];
    const bool in_product = is_product(op) || (is_move(op) && !is_select(op) && any_in_product(op, found));
    for (const TensorUse& use : op.inputs) {
      if (!lies_in_storage(use, trace)) continue;
      FirstUse& s = found[use.storage];
      s.seen_forward |= op.phase != record::Phase::kBackward;
      const Kinds kinds = kinds_of(use.health);
      if (kinds == 0 || is_overwritten(op, use)) continue;
      s.in_product |= in_product;
      if (timeline.start[id] > s.first_write) continue;
      s.before_kinds |= kinds;
      if (s.before == nullptr || use.health.numel >= s.before->health.numel)
        s.before = &use;  // the first of the largest
    }
  }
  return found;
}

}  // namespace finitude::locate
