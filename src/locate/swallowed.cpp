#include <algorithm>

#include "locate/op_kinds.h"
#include "locate/slice.h"

namespace finitude::locate {

using record::Op;
using record::OpId;
using record::TensorUse;

namespace {

bool infinite(const TensorUse& use) { return use.health.inf() > 0; }

// The first op after it that hands an infinity to the host, as `norm.item()` does: what Python makes of that number is
// in no trace.
OpId handed_to_host(const record::Trace& trace, OpId from) {
  for (OpId id = from + 1; id < trace.ops.size(); ++id) {
    const Op& op = trace.ops[id];
    const bool only_infinity =
        std::ranges::any_of(op.inputs, infinite) &&
        std::ranges::none_of(op.inputs, [](const TensorUse& use) { return use.health.nan != 0; });
    if (is_item(op) && only_infinity) return id;
  }
  return record::kNone;
}

}  // namespace

std::vector<Birth> swallowed_overflows(const record::Trace& trace, const Located& located) {
  std::vector<Birth> found;
  for (Birth birth : located.absorbed) {
    if (birth.op >= trace.ops.size()) continue;
    const Op& op = trace.ops[birth.op];
    if (const OpId item = handed_to_host(trace, birth.op);
        item != record::kNone && !op.allocates && !is_move(op) && std::ranges::any_of(op.outputs, infinite)) {
      birth.absorbed_by = item;
      found.push_back(std::move(birth));
      continue;
    }
    if (birth.absorbed_by >= trace.ops.size()) continue;
    const Op& absorber = trace.ops[birth.absorbed_by];
    const auto has_zero = [](const TensorUse& use) { return use.health.zero > 0; };
    if (op.allocates || is_move(op) || is_select(absorber)) continue;  // memory nobody wrote, a mask, a guard
    if (std::ranges::none_of(op.outputs, infinite) || std::ranges::none_of(absorber.outputs, has_zero)) continue;
    found.push_back(birth);
  }
  return found;
}

}  // namespace finitude::locate
