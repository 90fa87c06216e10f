#include <algorithm>

#include "locate/op_kinds.h"
#include "locate/slice.h"

namespace finitude::locate {

using record::Op;
using record::OpId;
using record::TensorUse;

std::vector<Birth> swallowed_overflows(const record::Trace& trace, const Located& located) {
  std::vector<Birth> found;
  for (const Birth& birth : located.absorbed) {
    if (birth.op >= trace.ops.size() || birth.absorbed_by >= trace.ops.size()) continue;
    const Op& op = trace.ops[birth.op];
    const Op& absorber = trace.ops[birth.absorbed_by];
    const auto infinite = [](const TensorUse& use) { return use.health.inf() > 0; };
    const auto has_zero = [](const TensorUse& use) { return use.health.zero > 0; };
    if (op.allocates || is_move(op) || is_select(absorber)) continue;  // memory nobody wrote, a mask, a guard
    if (std::ranges::none_of(op.outputs, infinite) || std::ranges::none_of(absorber.outputs, has_zero)) continue;
    found.push_back(birth);
  }
  return found;
}

}  // namespace finitude::locate
