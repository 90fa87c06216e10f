#include "locate/births.h"

#include <algorithm>
#include <ranges>

#include "locate/op_kinds.h"

namespace finitude::locate {
namespace {

using record::kNone;
using record::Op;
using record::OpId;
using record::Origin;
using record::Phase;

constexpr std::size_t kMaxPath = 64;
constexpr OpId kMaxNodeSearch = 4096, kMaxSampleSearch = 65536;

const char* kind_of(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kOptimizer:
      return "optimizer";
    case Phase::kData:
      return "data";
  }
  return "forward";
}

void set_node(const record::Trace& trace, OpId node, Birth* birth) {
  if (node >= trace.ops.size()) return;
  birth->node = node;
  const OpId forward = trace.ops[node].forward;
  birth->forward = forward < trace.ops.size() ? forward : kNone;
}

// A gradient that no traced op wrote was made by a node that computes outside the dispatcher: the last one
// that ended before the value was read, had finite inputs and called no op.
OpId silent_node(const record::Trace& trace, const Flow& flow, OpId reader) {
  for (OpId id = reader, steps = 0; id-- > 0 && steps < kMaxNodeSearch; ++steps) {
    const Op& op = trace.ops[id];
    if (!op.is_node || flow.timeline.end[id] > flow.timeline.start[reader]) continue;
    if (op.name.find("AccumulateGrad") != std::string::npos) continue;
    if (id + 1 < trace.ops.size() && trace.ops[id + 1].parent == id) continue;
    if (std::ranges::all_of(op.inputs, [](const auto& use) { return use.health.ok(); })) return id;
  }
  return kNone;
}

void describe_origin(const record::Trace& trace, const Flow& flow, const Event& event, std::uint32_t sink,
                     Birth* birth) {
  const Origin origin = trace.storages[event.storage].origin;
  birth->phase = Phase::kForward;
  birth->kind = "state";
  switch (origin) {
    case Origin::kParameter:
    case Origin::kBuffer:
    case Origin::kOptimizerState:
      return;
    case Origin::kGradient:
      birth->kind = "backward";
      birth->phase = Phase::kBackward;
      return;
    case Origin::kUnknown:
      if (event.label == kDamagedGradient) {
        birth->kind = "backward";
        birth->phase = Phase::kBackward;
        if (event.first_reader != kNone) set_node(trace, silent_node(trace, flow, event.first_reader), birth);
        return;
      }
      if (event.first_reader == kNone && sink < trace.sinks.size() && trace.sinks[sink].kind != "loss") {
        if (trace.sinks[sink].kind != "gradient") return;
        birth->kind = "backward";
        birth->phase = Phase::kBackward;
        return;
      }
      break;
    case Origin::kBatch:
    case Origin::kConstant:
      break;
  }
  birth->kind = "data";
  birth->phase = Phase::kData;
}

// Whether a vector of `size` has a number for each sample: then something with more dimensions has that many rows, or a
// loader gave as many. The elements of one sample, or of all gradients in a row, are no rows.
bool has_samples(const record::Trace& trace, std::int64_t size) {
  const auto of = [&](const record::TensorUse& use, std::size_t least) {
    if (use.shape.size() < least || use.shape[0] != size) return false;
    const Origin origin = use.storage < trace.storages.size() ? trace.storages[use.storage].origin : Origin::kUnknown;
    return origin == Origin::kBatch ||
           (use.shape.size() > 1 && origin != Origin::kParameter && origin != Origin::kOptimizerState);
  };
  const auto first_ops = std::views::take(trace.ops, kMaxSampleSearch);
  return std::ranges::any_of(first_ops, [&](const Op& op) {
    if (op.is_view || op.phase == Phase::kBackward || op.phase == Phase::kOptimizer) return false;
    const auto any = [&](const auto& uses) {
      return std::ranges::any_of(uses, [&](const auto& use) { return of(use, 1); });
    };
    return any(op.inputs) || any(op.outputs);
  });
}

// The rows that the observer listed; else the row of the first bad element, which is all that is known then.
void set_rows(const record::Trace& trace, const record::TensorUse& use, Birth* birth) {
  if (use.shape.size() == 1 && !has_samples(trace, use.shape[0])) return;
  if (!use.bad_rows.empty()) {
    birth->rows = use.bad_rows;
    return;
  }
  if (use.shape.empty() || use.shape[0] <= 1 || use.first_bad < 0) return;
  std::int64_t inner = 1;
  for (std::size_t i = 1; i < use.shape.size(); ++i) {
    if (use.shape[i] <= 0 || inner > use.first_bad) break;  // beyond first_bad its exact size does not matter
    inner *= use.shape[i];
  }
  const std::int64_t row = use.first_bad / inner;
  if (row < use.shape[0]) birth->rows.push_back(row);
}

// Data that a stack or a concatenation took in as one sample of several: its place among them.
void set_place_in_stack(const record::Trace& trace, const Event& event, Birth* birth) {
  if (event.use == nullptr || event.use->shape.size() != 1 || !birth->rows.empty()) return;
  const OpId from = event.op == kNone ? 0 : event.op + 1;
  for (OpId id = from; id < trace.ops.size() && id - from < kMaxSampleSearch; ++id) {
    const Op& op = trace.ops[id];
    const bool stacks = base_name(op.name) == "stack";
    if (op.is_view || (!stacks && base_name(op.name) != "cat") || op.outputs.size() != 1 ||
        op.outputs[0].shape.size() < 2)
      continue;
    const std::vector<std::int64_t>& made = op.outputs[0].shape;
    std::vector<std::int64_t> rows;
    std::int64_t row = 0;
    for (const record::TensorUse& part : op.inputs) {
      const bool alike = part.shape.size() + (stacks ? 1 : 0) == made.size();
      if (!alike) break;
      const bool whole = part.storage == event.storage && part.begin == event.use->begin && part.end == event.use->end;
      if (whole && !part.health.ok()) rows.push_back(row);
      row += stacks ? 1 : part.shape[0];
    }
    if (rows.empty() || row != made[0] || op.inputs.size() != static_cast<std::size_t>(row))
      continue;  // or along another dimension
    birth->rows = std::move(rows);
    birth->rows_of = row;
    return;
  }
}

}  // namespace

std::uint32_t when(const Flow& flow, EventId id) {
  const Event& event = flow.events[id];
  const OpId op = event.from == Event::From::kOp ? event.op : event.first_reader;
  return op == kNone ? 0 : flow.timeline.start[op];
}

Birth describe(const record::Trace& trace, const Flow& flow, EventId id, std::uint32_t sink) {
  const Event& event = flow.events[id];
  Birth birth;
  birth.op = event.op;
  birth.first_reader = event.first_reader;
  birth.sink = sink == kNone ? 0 : sink;
  if (event.use != nullptr) set_rows(trace, *event.use, &birth);
  if (event.from == Event::From::kOp) {
    const Op& op = trace.ops[event.op];
    birth.phase = op.phase;
    birth.kind = kind_of(op.phase);
    if (event.into_state) {
      birth.kind = "state";
      birth.storage = event.storage;
      return birth;
    }
    if (op.phase == Phase::kBackward) set_node(trace, op.is_node ? event.op : op.node, &birth);
    if (op.phase == Phase::kData) set_place_in_stack(trace, event, &birth);
    return birth;
  }
  birth.storage = event.storage;
  if (event.from == Event::From::kOrigin) {
    describe_origin(trace, flow, event, sink, &birth);
    if (birth.phase == Phase::kData) set_place_in_stack(trace, event, &birth);
    return birth;
  }
  birth.kind = "memory";
  const OpId near = event.op != kNone ? event.op : event.first_reader;
  if (near != kNone) birth.phase = trace.ops[near].phase;
  // Found by backward: the forward op that it belongs to read the same memory, at a line that the engine has not.
  if (event.first_reader != kNone && birth.phase == Phase::kBackward)
    set_node(trace, trace.ops[event.first_reader].node, &birth);
  return birth;
}

std::vector<OpId> path_from(const Flow& flow, const Search& search, EventId event) {
  std::vector<OpId> path;
  for (EventId at = search.next(event); at != kNone; at = search.next(at)) {
    if (flow.events[at].op != kNone) path.push_back(flow.events[at].op);
  }
  return path;
}

std::vector<OpId> shorten(std::vector<OpId> path) {
  path.erase(std::unique(path.begin(), path.end()), path.end());
  if (path.size() > kMaxPath) {
    path.erase(path.begin() + kMaxPath / 2, path.end() - kMaxPath / 2);
  }
  return path;
}

namespace {

// A part of an operator whose own result is not finite (the masked maximum in logsumexp): whatever that part gave, the
// operator did not hide the value.
bool is_part_of_unfinished(const record::Trace& trace, OpId id) {
  for (id = trace.ops[id].parent; id < trace.ops.size() && !trace.ops[id].is_node; id = trace.ops[id].parent) {
    if (std::ranges::any_of(trace.ops[id].outputs, [](const auto& out) { return !out.health.ok(); })) return true;
  }
  return false;
}

// logsumexp of which the op is a part, where that gave finite values: to it -Inf is a sum of nothing, and no part of it
// (the largest element, a mask of that) chose anything else. The op itself where it is a part of none.
OpId whole_sum(const record::Trace& trace, OpId id) {
  for (OpId at = id; at < trace.ops.size() && !trace.ops[at].is_node; at = trace.ops[at].parent)
    if (const auto name = base_name(trace.ops[at].name); name == "logsumexp" || name == "special_logsumexp") id = at;
  return id;
}

}  // namespace

OpId find_absorber(const record::Trace& trace, const Flow& flow, EventId origin, std::uint32_t until) {
  std::vector<bool> event_tainted(flow.events.size()), layer_tainted(flow.layers.size());
  event_tainted[origin] = true;
  LayerId done = 0;
  const auto taint_layers = [&](LayerId limit) {
    for (; done < limit; ++done) {
      const Layer& layer = flow.layers[done];
      layer_tainted[done] = (layer.event != kNone && event_tainted[layer.event]) ||
                            (layer.prev != kNone && layer_tainted[layer.prev]) ||
                            (layer.other != kNone && layer_tainted[layer.other]);
    }
  };
  const auto reads_tainted = [&](std::uint32_t begin, std::uint32_t count) {
    for (std::uint32_t i = begin; i < begin + count; ++i) {
      const Source& source = flow.sources[i];
      if (source.top_only) {
        const EventId event = flow.layers[source.layer].event;
        if (event != kNone && event_tainted[event]) return true;
      } else if (layer_tainted[source.layer]) {
        return true;
      }
    }
    return false;
  };
  for (EventId id = origin + 1; id < flow.events.size(); ++id) {
    const Event& event = flow.events[id];
    taint_layers(event.layers_before);
    event_tainted[id] = !event.birth && reads_tainted(event.first_source, event.num_sources);
  }
  taint_layers(static_cast<LayerId>(flow.layers.size()));

  const auto gives_finite = [](const Op& op) {
    bool any = false;
    for (const auto& out : op.outputs) {
      if (!out.health.ok()) return false;
      any |= out.health.numel != 0;
    }
    return any;
  };
  OpId select = kNone, other = kNone;
  const OpId op = flow.events[origin].op;
  for (OpId id = op == kNone ? 0 : op + 1; id < trace.ops.size() && flow.timeline.start[id] < until; ++id) {
    const Op& reader = trace.ops[id];
    const Range reads = flow.op_reads[id];
    if (reads.count == 0 || reader.is_view || reader.is_node || takes_only_the_shape(reader) || !gives_finite(reader))
      continue;
    if (!reads_tainted(reads.begin, reads.count) || is_part_of_unfinished(trace, id)) continue;
    const OpId whole = whole_sum(trace, id);
    OpId& slot = is_select(trace.ops[whole]) ? select : other;
    if (slot == kNone || reader.parent == slot) slot = whole;
  }
  return select != kNone ? select : other;
}

}  // namespace finitude::locate
