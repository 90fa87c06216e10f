#include "locate/objects.h"

#include <algorithm>

#include "record/exchange.h"

namespace finitude::locate {
namespace {

using record::kNone;
using record::Op;
using record::OpId;

bool exchanges_bytes(const Op& op) {
  const auto is_of_numbers = [](const record::TensorUse& use) { return use.dtype != sense::DType::kOther; };
  return record::exchanges_values(op.name) && !op.inputs.empty() && std::ranges::none_of(op.inputs, is_of_numbers) &&
         std::ranges::none_of(op.outputs, is_of_numbers);
}

// Memory that no operator of the trace has written, and that no loader gave.
bool came_unseen(const record::Trace& trace, const Birth& birth) {
  return birth.op == kNone && birth.kind == "data" && birth.storage < trace.storages.size() &&
         trace.storages[birth.storage].origin == record::Origin::kUnknown && birth.first_reader < trace.ops.size();
}

}  // namespace

void follow_objects(const record::Trace& trace, Located* located) {
  for (Birth& birth : located->births) {
    if (!came_unseen(trace, birth)) continue;
    OpId exchange = birth.first_reader;
    while (exchange > 0 && !exchanges_bytes(trace.ops[exchange])) --exchange;
    if (!exchanges_bytes(trace.ops[exchange])) continue;
    const auto own = std::ranges::find_if(located->absorbed, [&](const Birth& made) {
      return made.op < exchange && made.phase == record::Phase::kForward && made.absorbed_by == kNone;
    });
    Birth moved = birth;
    if (own != located->absorbed.end()) {
      moved = *own;
      moved.sink = birth.sink;
      moved.path = birth.path;
      moved.path.insert(moved.path.begin(), {exchange, birth.first_reader});
      located->absorbed.erase(own);
    } else {
      moved.op = exchange;
      moved.storage = kNone;
      moved.rows.clear();
    }
    birth = std::move(moved);
    return;  // the others came with it
  }
}

}  // namespace finitude::locate
