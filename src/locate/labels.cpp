#include "locate/labels.h"

#include <algorithm>

#include "locate/first_uses.h"
#include "locate/intent.h"
#include "locate/op_kinds.h"
#include "locate/search.h"
#include "locate/seen.h"
#include "locate/state.h"
#include "locate/unwritten.h"
#include "locate/writes.h"

namespace finitude::locate {
namespace {

using record::kNone;
using record::Op;
using record::OpId;
using record::Origin;
using record::Phase;
using record::TensorUse;

constexpr std::uint32_t kNumber = kNone;  // Source::input of a number that came through the host
constexpr int kReaderDepth = 16;          // layers looked through for the first reader of what came from outside

class Sweep {
 public:
  Sweep(const record::Trace& trace, const Meant& meant)
      : trace_(trace),
        meant_(meant),
        contents_(trace.storages.size()),
        origin_layers_(trace.storages.size(), kNone),
        seen_(trace.storages.size()),
        has_children_(trace.ops.size()) {}

  Flow run() &&;

 private:
  bool is_known(const TensorUse& use) const { return lies_in_storage(use, trace_); }
  void start(OpId id);
  void finish(OpId id);
  void sink(std::size_t index);
  void explain_use(const TensorUse& use, Kinds kinds, std::uint32_t input, OpId reader, std::vector<Source>* out);
  void note_readers(const Source& source, OpId reader);
  Range store(const std::vector<Source>& sources);
  LayerId origin_layer(const TensorUse& use, OpId reader);
  void written(OpId id, const Write& write);
  bool explained_inside(OpId id, const TensorUse& use, Kinds kinds, Labels* labels, bool* by_number);
  Range given_around(OpId id) const;
  EventId add_event(Event event);
  void judge(OpId id, const Write& write, Kinds kinds, Event* event);

  const record::Trace& trace_;
  const Meant& meant_;
  Contents contents_;
  std::vector<FirstUse> first_uses_;    // by storage
  std::vector<LayerId> origin_layers_;  // by storage: that of its kOrigin event, once needed
  SeenFinite seen_;
  std::vector<bool> has_children_;
  Flow flow_;
  std::uint32_t now_ = 0;
  std::vector<Source> numbers_[3];  // per kind: what explains the last such number that an op handed to the host
};

EventId Sweep::add_event(Event event) {
  event.moment = now_;
  event.layers_before = static_cast<LayerId>(contents_.layers.size());
  flow_.events.push_back(event);
  contents_.geometry.push_back(event.use != nullptr && !event.use->dense ? event.use : nullptr);
  return static_cast<EventId>(flow_.events.size() - 1);
}

LayerId Sweep::origin_layer(const TensorUse& use, OpId reader) {
  LayerId& layer = origin_layers_[use.storage];
  if (layer != kNone) return layer;
  const FirstUse& s = first_uses_[use.storage];
  const TensorUse& seen = s.before != nullptr ? *s.before : use;
  const Origin origin = trace_.storages[use.storage].origin;
  Event event;
  event.from = Event::From::kOrigin;
  event.storage = use.storage;
  event.use = &seen;
  event.kinds = kAllKinds;
  const bool meant = std::ranges::find(meant_.storages, use.storage) != meant_.storages.end();
  if (origin == Origin::kConstant || meant || (!s.in_product && is_mask_like(seen.health, origin))) {
    event.label = kIntended;
  } else {
    const bool gradient =
        origin == Origin::kGradient || (origin == Origin::kUnknown && reader != kNone &&
                                        trace_.ops[reader].phase == Phase::kBackward && !s.seen_forward);
    event.label = gradient ? kDamagedGradient : kDamaged;
    event.birth = true;
  }
  layer = contents_.lone_layer(add_event(event), kAllKinds, event.label);
  return layer;
}

// Adds to `out` what explains the bad values of `use`.
void Sweep::explain_use(const TensorUse& use, Kinds kinds, std::uint32_t input, OpId reader, std::vector<Source>* out) {
  const std::size_t first = out->size();
  const FirstUse& s = first_uses_[use.storage];
  const Found found = contents_.read(use, kinds, input, out);
  bool explained = (found.kinds & kinds) != 0 && ((kinds & kNan) == 0 || (found.kinds & kNan) != 0);
  const bool came_later = reader != kNone && trace_.ops[reader].phase == Phase::kBackward && seen_.covers(use);
  // As abs of complex numbers does with its result: nobody had it before, so the bad values came from no batch.
  OpId writer = found.unwritten && !explained && s.made_empty != kNone
                    ? raw_writer(trace_, flow_.timeline, reader, use, s.made_empty)
                    : kNone;
  OpId bits = kNone;
  if (writer == kNone && !explained && (bits = reinterpreted(trace_, reader, use)) != kNone) writer = bits;
  if (writer == kNone && found.unwritten && !explained && trace_.storages[use.storage].origin == Origin::kUnknown) {
    writer = interrupted_writer(trace_, flow_.timeline, reader, s.first_seen);
    if (writer == kNone) writer = owner_of_result(trace_, flow_.timeline, reader, s.first_seen);
  }
  if (writer == kNone && found.unwritten && !came_later && (!explained || (s.before_kinds & kinds) != 0)) {
    const LayerId layer = origin_layer(use, reader);
    out->push_back({layer, input, kinds, labels_of(contents_.layers[layer], kinds), false});
    explained = true;
  }
  if (writer == kNone && (!explained || found.labels == kUninit))
    writer = raw_writer(trace_, flow_.timeline, reader, use, s.first_write);
  if (!explained || writer != kNone) {
    out->resize(first);
    Event event;
    event.storage = use.storage;
    event.use = &use;
    event.kinds = kinds;
    event.op = writer;
    if (bits != kNone) {
      event.birth = true;
      event.label = trace_.ops[bits].phase == Phase::kBackward ? kDamagedGradient : kDamaged;
      event.first_reader = reader;
    } else if (writer != kNone) {
      judge(writer, {&use, 0, 0, false}, kinds, &event);
    } else {
      event.from = Event::From::kUnseen;
      event.birth = true;
      event.label = reader != kNone && trace_.ops[reader].phase == Phase::kBackward ? kDamagedGradient : kDamaged;
    }
    const EventId id = add_event(event);
    contents_.write_bad(use, id, kinds, event.label);
    contents_.read(use, kinds, input, out);
  }
  if (reader == kNone || trace_.ops[reader].is_view || trace_.ops[reader].is_node) return;
  for (std::size_t i = first; i < out->size(); ++i) note_readers((*out)[i], reader);
}

void Sweep::note_readers(const Source& source, OpId reader) {
  LayerId at = source.layer;
  for (int depth = 0; at != kNone && depth < kReaderDepth; ++depth, at = contents_.layers[at].prev) {
    const EventId id = contents_.layers[at].event;
    if (id == kNone || flow_.events[id].from == Event::From::kOp) continue;
    OpId& first = flow_.events[id].first_reader;
    if (first == kNone || trace_.ops[reader].parent == first)
      first = reader;  // the innermost of those that start with it
  }
}

Range Sweep::store(const std::vector<Source>& sources) {
  const auto begin = static_cast<std::uint32_t>(flow_.sources.size());
  flow_.sources.insert(flow_.sources.end(), sources.begin(), sources.end());
  return {begin, static_cast<std::uint32_t>(sources.size())};
}

void Sweep::start(OpId id) {
  const Op& op = trace_.ops[id];
  std::vector<Source> reads;
  Kinds from_host = 0;  // numbers in arithmetic: not the mask values of a fill or a where
  for (std::uint32_t i = 0; i < op.inputs.size(); ++i) {
    const TensorUse& use = op.inputs[i];
    const Kinds kinds = kinds_of(use.health);
    if (!is_known(use) || is_overwritten(op, use)) continue;
    if (op.phase != Phase::kBackward) seen_.note(use);
    if (kinds == 0) continue;
    if (trace_.storages[use.storage].origin == Origin::kConstant) from_host |= kinds;
    explain_use(use, kinds, i, id, &reads);
  }
  for (const auto& scalar : op.scalars) from_host |= kinds_of(scalar);
  if (from_host != 0 && !is_move(op)) {
    for (int k = 0; k < 3; ++k) {
      if (from_host >> k & 1) reads.insert(reads.end(), numbers_[k].begin(), numbers_[k].end());
    }
  }
  if (reads.empty()) return;
  flow_.op_reads[id] = store(reads);
  if (!is_item(op)) return;
  for (int k = 0; k < 3; ++k) {
    std::vector<Source> bad;
    for (Source source : reads) {
      if ((source.labels & kAnyDamage) == 0 || (source.kinds >> k & 1) == 0) continue;
      source.input = kNumber;
      source.kinds = static_cast<Kinds>(1 << k);
      bad.push_back(source);
    }
    if (!bad.empty()) numbers_[k] = std::move(bad);
  }
}

// A part of an operator of PyTorch's own may make again what that was given: logsumexp of a row of -Inf is the
// logarithm of a sum of zeros. What explains the bad values that the operator around `id` read, or nothing.
Range Sweep::given_around(OpId id) const {
  for (OpId at = parent_of(trace_, id); at != kNone; at = parent_of(trace_, at)) {
    if (!is_dispatcher_op(trace_.ops[at]) || !trace_.ops[at].name.starts_with("aten::")) break;
    if (skips_nan(trace_.ops[at])) break;  // nanmean of nothing but NaN is a division by a count of 0
    if ((labels_of(flow_, flow_.op_reads[at]) & kAnyDamage) != 0) return flow_.op_reads[at];
  }
  return {};
}

// Are the bad values of this output of `id` what ops inside it wrote? Then those are to be followed. by_number: one of
// them wrote a number and had read nothing bad.
bool Sweep::explained_inside(OpId id, const TensorUse& use, Kinds kinds, Labels* labels, bool* by_number) {
  std::vector<Source> sources;
  contents_.read(use, kinds, 0, &sources);
  Kinds inside = 0;
  for (const Source& source : sources) {
    const Layer& layer = contents_.layers[source.layer];
    *labels |= source.labels & static_cast<Labels>(~kUninit);
    // A bundle has no event of its own; it was made by reading many writes at once.
    if (layer.event != kNone && flow_.events[layer.event].moment < flow_.timeline.start[id]) continue;
    *by_number |= layer.event != kNone && flow_.events[layer.event].from == Event::From::kOp &&
                  flow_.events[layer.event].num_sources == 0;
    for (int k = 0; k < 3; ++k) {
      if ((layer.labels[k] & ~kUninit) != 0) inside |= static_cast<Kinds>(1 << k);
    }
  }
  return (inside & kinds) == kinds;
}

// Label and sources of what `id` wrote, by what it had read.
void Sweep::judge(OpId id, const Write& write, Kinds kinds, Event* event) {
  const Op& op = trace_.ops[id];
  Range reads = flow_.op_reads[id];
  const bool moves = is_move(op);
  Kinds in_kinds = 0, scalar_kinds = 0;
  for (const auto& scalar : op.scalars) scalar_kinds |= kinds_of(scalar);
  // Keep the reads that this very output can stem from.
  const bool lists = write.list_size > 1 && is_list_op(op);
  if (reads.count != 0 && (lists || moves)) {
    const std::vector<Member> in = lists ? members(op.inputs) : std::vector<Member>();
    std::vector<Source> kept;
    for (std::uint32_t i = 0; i < reads.count; ++i) {
      const Source& source = flow_.sources[reads.begin + i];
      const bool other_member = source.input < in.size() && in[source.input].size == write.list_size &&
                                in[source.input].index != write.member;
      const bool other_kind = moves && !write.assumed && !is_cast(op) && (source.kinds & kinds) == 0;
      if (!other_member && !other_kind) kept.push_back(source);
    }
    if (kept.size() != reads.count) reads = store(kept);
  }
  Labels labels = 0;
  for (std::uint32_t i = 0; i < reads.count; ++i) {
    const Source& source = flow_.sources[reads.begin + i];
    labels |= source.labels;
    in_kinds |= source.kinds;
  }
  event->first_source = reads.begin;
  event->num_sources = reads.count;
  const bool gradient = op.phase == Phase::kBackward || (labels & kDamagedGradient) != 0;
  const Labels damage = gradient ? kDamagedGradient : kDamaged;
  if (ruins_state(trace_, flow_, contents_.layers, op, write, kinds, labels, reads)) {
    event->label = damage;
    event->birth = event->into_state = true;
    return;
  }
  if ((labels & kAnyDamage) != 0) {
    event->label = damage;
    return;
  }
  if ((labels & kUninit) != 0) {
    event->label = moves ? kUninit : damage;
    return;
  }
  if (reads.count == 0 && std::ranges::find(meant_.ops, id) != meant_.ops.end()) {
    event->label = kIntended;
    return;
  }
  const bool nothing_before = reads.count == 0 && scalar_kinds == 0;
  const bool computed_nan = (kinds & kNan) != 0 && !moves;
  // A learning rate or coefficient that is not finite is nobody's mask.
  const bool optimizer = op.phase == Phase::kOptimizer && (!moves || scalar_kinds != 0);
  const bool new_kind = is_monotone(op) && (kinds & ~in_kinds & ~scalar_kinds) != 0;
  if (nothing_before || computed_nan || optimizer || new_kind ||
      (scalar_kinds == 0 && !write.assumed &&
       grew(op, {flow_.sources.data() + reads.begin, reads.count}, *write.use))) {
    event->label = damage;
    const Range around = given_around(id);
    event->birth = around.count == 0;
    if (!event->birth) event->first_source = around.begin, event->num_sources = around.count;
    return;
  }
  event->label = kIntended;
}

void Sweep::written(OpId id, const Write& write) {
  const Op& op = trace_.ops[id];
  const TensorUse& use = *write.use;
  Kinds kinds = write.assumed ? kAllKinds : kinds_of(use.health);
  if (kinds == 0) return contents_.write_clean(use);
  Event event;
  event.op = id;
  event.storage = use.storage;
  event.use = &use;
  event.kinds = kinds;
  event.assumed = write.assumed;
  if (op.allocates && !write.assumed) {
    event.from = Event::From::kAlloc;
    event.label = kUninit;
    event.birth = true;
  } else {
    Labels inside = 0;
    bool by_number = false;
    if (has_children_[id] && explained_inside(id, use, kinds, &inside, &by_number)) {
      // Followed inside. But a constant that an op made for itself is not the user's intent: from finite
      // inputs and numbers came a non-finite output, and the op as a whole is the birth (logdet selecting its
      // own NaN); or it computed on the host and wrote what came out as a number (var and max of a whole tensor),
      // which then stems from what it had read.
      if (inside != kIntended || !is_dispatcher_op(op)) return;
      const Labels read = labels_of(flow_, flow_.op_reads[id]);
      if ((read & kAnyDamage) != 0 || (by_number && (read & kIntended) != 0 && !is_move(op))) {
        judge(id, write, kinds, &event);
      } else if (!is_move(op) && inputs_finite(op)) {
        event.label = op.phase == Phase::kBackward ? kDamagedGradient : kDamaged;
        event.birth = true;
      } else {
        return;
      }
    } else {
      judge(id, write, kinds, &event);
    }
  }
  const EventId at = add_event(event);
  if (!write.assumed) return contents_.write_bad(use, at, kinds, event.label);
  TensorUse maybe = use;
  maybe.dense = false;  // what was there before may be there still
  contents_.write_bad(maybe, at, kinds, event.label);
}

void Sweep::finish(OpId id) {
  for (const Write& write : writes_of(trace_.ops[id], has_children_[id])) {
    if (is_known(*write.use)) written(id, write);
  }
}

void Sweep::sink(std::size_t index) {
  const record::Sink& sink = trace_.sinks[index];
  const bool judged = sink.value.health.numel != 0;
  const Kinds kinds = judged ? kinds_of(sink.value.health) : kAllKinds;
  if (kinds == 0 || !is_known(sink.value)) return;
  std::vector<Source> reads;
  if (judged) {
    explain_use(sink.value, kinds, 0, kNone, &reads);
  } else if (contents_.read(sink.value, kinds, 0, &reads).unwritten &&
             first_uses_[sink.value.storage].before_kinds != 0) {
    const LayerId layer = origin_layer(sink.value, kNone);
    reads.push_back({layer, 0, kinds, labels_of(contents_.layers[layer], kinds), false});
  }
  flow_.sink_reads[index] = store(reads);
}

Flow Sweep::run() && {
  flow_.timeline = make_timeline(trace_);
  flow_.op_reads.resize(trace_.ops.size());
  flow_.sink_reads.resize(trace_.sinks.size());
  for (OpId id = 0; id < trace_.ops.size(); ++id) {
    if (const OpId parent = parent_of(trace_, id); parent != kNone) has_children_[parent] = true;
  }
  first_uses_ = first_uses(trace_, flow_.timeline, has_children_);
  std::vector<std::pair<std::uint32_t, std::size_t>> sinks;
  for (std::size_t i = 0; i < trace_.sinks.size(); ++i) {
    sinks.emplace_back(flow_.timeline.sink_moment(trace_.sinks[i].at_end_order), i);
  }
  std::ranges::sort(sinks);
  auto next = sinks.begin();
  const auto moments = static_cast<std::uint32_t>(flow_.timeline.moments.size());
  for (now_ = 0; now_ <= moments; ++now_) {
    for (; next != sinks.end() && next->first <= now_; ++next) sink(next->second);
    if (now_ == moments) break;
    const auto [op, is_end] = flow_.timeline.moments[now_];
    is_end ? finish(op) : start(op);
  }
  flow_.layers = std::move(contents_.layers);
  return std::move(flow_);
}

}  // namespace

Flow label(const record::Trace& trace, const Meant& meant) { return Sweep(trace, meant).run(); }

}  // namespace finitude::locate
