#include "locate/last_seen.h"

#include <algorithm>
#include <array>
#include <utility>

#include "locate/op_kinds.h"
#include "record/exchange.h"

namespace finitude::locate {
namespace {

using record::kNone;
using record::Op;
using record::OpId;
using record::TensorUse;

const TensorUse* first_of(const std::vector<TensorUse>& uses, Kinds kinds, auto is_read) {
  const auto found = std::ranges::find_if(uses, [&](const TensorUse& use) {
    return use.storage != kNone && (kinds_of(use.health) & kinds) != 0 && is_read(use);
  });
  return found == uses.end() ? nullptr : &*found;
}

// Was that memory allocated by an op of the trace and written by none before `reader`? A view of it (detach of a new
// parameter that the next op initialises) computes with none of its values. Inner ops do not count: in deterministic
// mode, empty fills what it gives.
bool is_unwritten(const record::Trace& trace, OpId reader, std::uint32_t storage) {
  const auto is_here = [&](const TensorUse& use) { return use.storage == storage; };
  for (OpId id = reader; id-- > 0;) {
    const Op& op = trace.ops[id];
    if (op.parent != kNone) continue;
    const bool is_output = std::ranges::any_of(op.outputs, is_here);
    if (op.allocates && is_output) return true;
    if (is_output && !op.is_view) return false;
    if (std::ranges::any_of(op.inputs, [&](const TensorUse& use) { return use.written && is_here(use); })) return false;
  }
  return false;
}

// The first value of those kinds that the op gave.
const TensorUse* given_by(const record::Trace& trace, OpId id, Kinds kinds) {
  const Op& op = trace.ops[id];
  return first_of(op.outputs, kinds,
                  [&](const TensorUse& use) { return !op.is_view || !is_unwritten(trace, id, use.storage); });
}

// The first value of those kinds that the op read: not what it overwrites, nor what only gives it a shape.
const TensorUse* read_by(const record::Trace& trace, OpId id, Kinds kinds) {
  const Op& op = trace.ops[id];
  if (takes_only_the_shape(op)) return nullptr;
  return first_of(op.inputs, kinds, [&](const TensorUse& use) {
    return !is_overwritten(op, use) && (!op.is_view || !is_unwritten(trace, id, use.storage));
  });
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
    if (const TensorUse* given = given_by(*trace, id, kinds)) {
      sink.value = *given;
      sink.at_end_order = op.end_order + 1;
    } else if (const TensorUse* read = read_by(*trace, id, kinds)) {
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

// Does the operator give others what it reads? What a receiver is called with is memory to be filled.
bool gives_away(const Op& op) {
  if (!record::exchanges_values(op.name) || record::only_waits(op.name)) return false;
  constexpr std::array kWords{"send", "reduce", "gather", "alltoall", "all_to_all"};
  return std::ranges::any_of(kWords, [&](const char* word) { return op.name.find(word) != std::string::npos; });
}

}  // namespace

bool sink_given_away(record::Trace* trace) {
  bool found = false;
  for (const Op& op : trace->ops) {
    if (!gives_away(op)) continue;
    for (const TensorUse& use : op.inputs) {
      if (use.storage == kNone || use.health.ok() || use.arg.starts_with("output")) continue;
      record::Sink sink{"gradient", "what another rank was given", use, 0, op.micro_batch};
      sink.at_end_order = op.end_order == 0 ? kNone : op.end_order;
      trace->sinks.push_back(std::move(sink));
      found = true;
    }
  }
  return found;
}

bool sink_last_seen(record::Trace* trace) {
  return sink_last_of(trace, kNan | kPosInf) || sink_last_of(trace, kNegInf);
}

}  // namespace finitude::locate
