#include "locate/timeline.h"

#include <algorithm>
#include <numeric>

namespace finitude::locate {
namespace {

// An op that was still running when the trace stopped has no rank and no outputs; it ends after all others.
std::uint32_t rank_of(const record::Op& op) {
  return op.end_order == 0 && op.outputs.empty() ? record::kNone : op.end_order;
}

}  // namespace

Timeline make_timeline(const record::Trace& trace) {
  const auto n = static_cast<record::OpId>(trace.ops.size());
  std::vector<record::OpId> ends(n);
  std::iota(ends.begin(), ends.end(), 0u);
  std::ranges::sort(ends, [&](record::OpId a, record::OpId b) {
    const auto ra = rank_of(trace.ops[a]), rb = rank_of(trace.ops[b]);
    return ra != rb ? ra < rb : a > b;  // children before the parent
  });
  Timeline t;
  t.moments.reserve(2 * static_cast<std::size_t>(n));
  t.start.resize(n);
  t.end.resize(n);
  record::OpId next = 0;
  for (const record::OpId id : ends) {
    for (; next <= id; ++next) {
      t.start[next] = static_cast<std::uint32_t>(t.moments.size());
      t.moments.push_back({next, false});
    }
    t.end[id] = static_cast<std::uint32_t>(t.moments.size());
    t.end_orders_.push_back(rank_of(trace.ops[id]));
    t.end_moments_.push_back(t.end[id]);
    t.moments.push_back({id, true});
  }
  return t;
}

std::uint32_t Timeline::sink_moment(std::uint32_t at_end_order) const {
  if (at_end_order == record::kNone) return static_cast<std::uint32_t>(moments.size());
  const auto it = std::ranges::lower_bound(end_orders_, at_end_order);
  return it == end_orders_.begin() ? 0 : end_moments_[static_cast<std::size_t>(it - end_orders_.begin()) - 1] + 1;
}

}  // namespace finitude::locate
