// Second pass: the backward slice from every sink, and what it says about causes.
#include "locate/slice.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "locate/births.h"
#include "locate/labels.h"
#include "locate/meant.h"
#include "locate/op_kinds.h"
#include "locate/search.h"

namespace finitude::locate {
namespace {

using record::kNone;
using record::OpId;
using record::Phase;

constexpr std::size_t kMaxBirths = 1024, kMaxAbsorbed = 64;
constexpr std::size_t kMaxExplained = 16;  // births for which a search of its own may be spent

class Slicer {
 public:
  Slicer(const record::Trace& trace, const Meant& meant)
      : trace_(trace), flow_(label(trace, meant)), search_(flow_), used_(flow_.events.size()) {}
  Located run() &&;

 private:
  struct Candidate {
    bool from_loss;
    std::uint32_t when;
    EventId event;
    std::uint32_t sink;
    std::optional<Birth> birth;  // not set: described once it is known to be among the first
  };

  Range reads_of(EventId id) const { return {flow_.events[id].first_source, flow_.events[id].num_sources}; }
  void add(EventId id, std::uint32_t sink, std::optional<Birth> birth = std::nullopt);
  void slice(std::uint32_t sink);
  void slice_intended(std::uint32_t sink);
  Birth described(EventId id, std::uint32_t sink);
  EventId mark_behind(EventId id, std::vector<OpId>* path) const;
  EventId infinity_behind(EventId id, std::vector<OpId>* path) const;
  bool is_of_model(OpId writer) const;
  EventId first_write_behind(EventId id, Kinds kinds, std::vector<OpId>* path) const;
  bool crosses(const Event& event, Labels labels) const;
  void explain_crossings();
  bool belongs(const Birth& crossing, const Birth& maker) const;
  void hidden_in_forward(Candidate& candidate) const;
  void list_absorbed(Located* out);

  const record::Trace& trace_;
  const Flow flow_;
  Search search_;
  bool loss_is_bad_ = false;
  std::vector<Candidate> candidates_;
  std::vector<std::pair<EventId, std::uint32_t>> crossings_;  // event, sink
  std::vector<Candidate> hidden_;  // forward births that reached a sink through backward only
  std::vector<bool> used_;         // events named by some birth
  std::size_t marks_looked_for_ = 0;
};

void Slicer::add(EventId id, std::uint32_t sink, std::optional<Birth> birth) {
  const bool from_loss = sink < trace_.sinks.size() && trace_.sinks[sink].kind == "loss";
  candidates_.push_back({from_loss, when(flow_, id), id, sink, std::move(birth)});
  used_[id] = true;
}

// Where a NaN comes from that an op read and took for a number of the program: the call that wrote it. kNone: the op at
// `id` did not make its NaN of such a one. An infinity may be a mask that arithmetic respects, so what makes NaN of it
// is the birth; a NaN goes through any arithmetic as it is, so the caller that wrote it is. `path`: what lies between
// the two.
EventId Slicer::mark_behind(EventId id, std::vector<OpId>* path) const {
  const Event& event = flow_.events[id];
  if (!event.birth || event.from != Event::From::kOp || (event.kinds & kNan) == 0) return kNone;
  const record::Op& op = trace_.ops[event.op];
  if (is_move(op) || op.phase == Phase::kBackward || op.phase == Phase::kOptimizer) return kNone;
  return first_write_behind(id, kNan, path);
}

// The same of infinities, where the op at `id` is none that a mask is for: a sum, also of products with the weights, a
// normalisation. `id` may also be where a loss became infinite. What wrote them put a number over a part of other data,
// as no mask is made.
EventId Slicer::infinity_behind(EventId id, std::vector<OpId>* path) const {
  const Event& event = flow_.events[id];
  if (event.from != Event::From::kOp || event.op >= trace_.ops.size() || trace_.ops[event.op].phase != Phase::kForward)
    return kNone;
  const EventId wrote = first_write_behind(id, kPosInf | kNegInf, path);
  if (wrote == kNone || !overwrites_data(trace_, flow_.events[wrote].op, event.op)) return kNone;
  const bool infinite_loss = !event.birth && (event.kinds & kNan) == 0;
  if (!infinite_loss && !spreads(trace_.ops[event.op])) return kNone;
  return std::ranges::any_of(*path, [&](OpId op) { return is_for_masks(trace_.ops[op]); }) ? kNone : wrote;
}

// The first op that wrote a number of these kinds, for which the op at `id` took them.
EventId Slicer::first_write_behind(EventId id, Kinds kinds, std::vector<OpId>* path) const {
  const Event& event = flow_.events[id];
  std::vector<std::uint32_t> given;
  for (std::uint32_t i = 0; i < event.num_sources; ++i) {
    const Source& source = flow_.sources[event.first_source + i];
    if (source.labels == kIntended && (source.kinds & kinds) != 0) given.push_back(event.first_source + i);
  }
  if (given.empty()) return kNone;
  Search search(flow_);
  for (const std::uint32_t at : given) search.follow({at, 1}, kIntended, kNone);
  for (EventId at = search.pop(); at != kNone; at = search.pop()) search.follow(reads_of(at), kIntended, at);
  EventId first = kNone;
  for (const EventId at : search.queue()) {
    const Event& wrote = flow_.events[at];
    if (wrote.from == Event::From::kOp && (wrote.kinds & kinds) != 0 && is_move(trace_.ops[wrote.op]))
      first = std::min(first, at);
  }
  if (first != kNone) *path = path_from(flow_, search, first);
  return first;
}

// Does the op write into what a module or a weight has a part in?
bool Slicer::is_of_model(OpId writer) const {
  const record::Op& wrote = trace_.ops[writer];
  const auto of_weights = [&](const auto& use) { return use.requires_grad && !is_overwritten(wrote, use); };
  const bool in_module = wrote.stack < trace_.stacks.size() && !trace_.stacks[wrote.stack].module.empty();
  return in_module || std::ranges::any_of(wrote.inputs, of_weights);
}

// As describe(), but where the op at `id` only passed on a NaN that the program had written, the birth is that write:
// of data, or of the forward pass where it went into something that the model had computed. Its path leads to the op at
// `id`.
Birth Slicer::described(EventId id, std::uint32_t sink) {
  std::vector<OpId> path;
  EventId mark = kNone;
  if (++marks_looked_for_ <= kMaxExplained) {
    mark = mark_behind(id, &path);
    if (mark == kNone) mark = infinity_behind(id, &path);
  }
  if (mark == kNone) return describe(trace_, flow_, id, sink);
  const OpId writer = flow_.events[mark].op, reader = flow_.events[id].op;
  Birth birth = describe(trace_, flow_, mark, sink);
  if (!is_of_model(writer)) {
    birth.kind = "data";
    birth.phase = Phase::kData;
  }
  const bool infinite = (flow_.events[mark].kinds & kNan) == 0;
  const auto computes = std::ranges::find_if(path, [&](OpId op) { return !is_move(trace_.ops[op]); });
  birth.first_reader = infinite && computes != path.end() ? *computes : reader;
  // The write may cover more rows than those that are read with the NaN still in them.
  const auto& whole = flow_.events[mark].use->shape;
  const auto& read = flow_.events[id].use->shape;
  birth.rows.clear();
  const auto has_rows_of_read = [&](const auto& use) {
    return use.storage == flow_.events[mark].storage && !use.shape.empty() && use.shape[0] == read[0];
  };
  const bool over_part =
      whole.empty() && !read.empty() && std::ranges::any_of(trace_.ops[reader].inputs, has_rows_of_read);
  if (over_part || (!whole.empty() && !read.empty() && whole[0] == read[0]))
    birth.rows = describe(trace_, flow_, id, sink).rows;
  birth.path = std::move(path);
  birth.path.push_back(reader);
  return birth;
}

// The loss is fine and yet a gradient computation made something bad of a finite gradient and a bad value of
// the forward pass: that is where it was born. The forward value was hidden there, which is half the story. A copy
// makes nothing of what it is given: it may bring home what other ranks sent, which no thread of backward's wrote.
bool Slicer::crosses(const Event& event, Labels labels) const {
  return !loss_is_bad_ && event.from == Event::From::kOp && trace_.ops[event.op].phase == Phase::kBackward &&
         trace_.ops[event.op].name != "aten::copy_" && (labels & kAnyDamage) == kDamaged;
}

void Slicer::slice(std::uint32_t sink) {
  const Range reads = flow_.sink_reads[sink];
  const Labels at_sink = labels_of(flow_, reads);
  search_.follow(reads, worth_following(at_sink), kNone);
  for (EventId id = search_.pop(); id != kNone; id = search_.pop()) {
    const Event& event = flow_.events[id];
    if (event.birth) {
      add(id, sink);
      continue;
    }
    const Labels labels = labels_of(flow_, reads_of(id));
    if (crosses(event, labels)) {
      crossings_.emplace_back(id, sink);
      continue;
    }
    Labels mask = worth_following(labels);
    if (!loss_is_bad_ && event.label == kDamagedGradient && (labels & kDamagedGradient) != 0) mask = kDamagedGradient;
    search_.follow(reads_of(id), mask, id);
  }
}

// A sink that is bad by nothing but intended infinities: the op that mixed them with other elements made them
// count.
void Slicer::slice_intended(std::uint32_t sink) {
  const Range reads = flow_.sink_reads[sink];
  const Labels labels = labels_of(flow_, reads);
  if ((labels & kIntended) == 0 || worth_following(labels) != 0) return;
  Search search(flow_);
  search.follow(reads, kIntended, kNone);
  for (EventId id = search.pop(); id != kNone; id = search.pop()) search.follow(reads_of(id), kIntended, id);

  std::vector<EventId> found = search.queue();
  std::ranges::sort(found);
  const auto mixes = [&](EventId id) {
    const Event& event = flow_.events[id];
    if (event.from != Event::From::kOp || event.use == nullptr || is_move(trace_.ops[event.op])) return false;
    const auto& op = trace_.ops[event.op];
    for (std::uint32_t i = 0; i < event.num_sources; ++i) {
      const std::uint32_t input = flow_.sources[event.first_source + i].input;
      if (input < op.inputs.size() && op.inputs[input].health.numel > event.use->health.numel) return true;
    }
    return op.phase == Phase::kBackward;
  };
  auto at = std::ranges::find_if(found, mixes);
  if (at == found.end()) {  // else the last op before the sink
    at = std::ranges::find_if(found, [&](EventId id) { return search.next(id) == kNone; });
    for (auto it = at; it != found.end(); ++it) {
      if (search.next(*it) == kNone) at = it;
    }
  }
  if (at == found.end() || used_[*at]) return;
  Birth birth = described(*at, sink);
  const std::vector<OpId> rest = path_from(flow_, search, *at);
  birth.path.insert(birth.path.end(), rest.begin(), rest.end());
  birth.path = shorten(std::move(birth.path));
  add(*at, sink, std::move(birth));
}

// Did the backward op work for the very forward op that made the bad value (exp saving its own infinity), or did
// that value travel on in the forward pass and some later op saved it? Then its maker is the only birth.
bool Slicer::belongs(const Birth& crossing, const Birth& maker) const {
  for (OpId id = crossing.forward, depth = 0; id < trace_.ops.size() && depth < 64;
       id = trace_.ops[id].parent, ++depth) {
    if (id == maker.op) return true;
  }
  for (OpId id = maker.op, depth = 0; id < trace_.ops.size() && depth < 64; id = trace_.ops[id].parent, ++depth) {
    if (id == crossing.forward) return true;
  }
  return crossing.forward == kNone;
}

void Slicer::explain_crossings() {
  std::ranges::sort(crossings_);
  for (std::size_t i = 0; i < crossings_.size(); ++i) {
    const auto [id, sink] = crossings_[i];
    if (i >= kMaxExplained) {
      add(id, sink);
      continue;
    }
    Birth birth = describe(trace_, flow_, id, sink);
    std::vector<OpId> path = path_from(flow_, search_, id);
    Search behind(flow_);
    behind.follow(reads_of(id), kAnyDamage, kNone);
    for (EventId at = behind.pop(); at != kNone; at = behind.pop()) {
      if (!flow_.events[at].birth) behind.follow(reads_of(at), worth_following(labels_of(flow_, reads_of(at))), at);
    }
    EventId creator = kNone;
    for (const EventId at : behind.queue()) {
      if (flow_.events[at].birth && (creator == kNone || when(flow_, at) < when(flow_, creator))) creator = at;
    }
    if (creator != kNone) {
      birth.absorbed_by = find_absorber(trace_, flow_, creator, flow_.events[id].moment);
      Birth hidden = described(creator, sink);
      hidden.absorbed_by = birth.absorbed_by;
      const std::vector<OpId> between = path_from(flow_, behind, creator);
      hidden.path.insert(hidden.path.end(), between.begin(), between.end());
      hidden.path.push_back(flow_.events[id].op);
      hidden.path.insert(hidden.path.end(), path.begin(), path.end());
      hidden.path = shorten(std::move(hidden.path));
      const bool traced_forward = flow_.events[creator].from == Event::From::kOp && hidden.kind == "forward";
      if (traced_forward) path.insert(path.begin(), hidden.op);
      if (!used_[creator]) {
        // What came in bad is the cause, whatever the backward pass made of it; an op that was hidden comes
        // second.
        if (traced_forward && belongs(birth, hidden)) {
          hidden_.push_back({false, when(flow_, creator), creator, sink, std::move(hidden)});
          used_[creator] = true;
        } else {
          add(creator, sink, std::move(hidden));
        }
      }
    }
    birth.path = shorten(std::move(path));
    add(id, sink, std::move(birth));
  }
}

// What came in bad, and reaches its sink through the backward pass alone as what it was: something hid it in forward.
void Slicer::hidden_in_forward(Candidate& candidate) const {
  Birth& birth = *candidate.birth;
  if (birth.absorbed_by != kNone || (birth.kind != "data" && birth.kind != "state")) return;
  const auto backward = std::ranges::find_if(
      birth.path, [&](OpId id) { return id < trace_.ops.size() && trace_.ops[id].phase == Phase::kBackward; });
  if (backward == birth.path.end()) return;
  birth.absorbed_by = find_absorber(trace_, flow_, candidate.event, flow_.timeline.start[*backward]);
}

void Slicer::list_absorbed(Located* out) {
  std::vector<std::pair<std::uint32_t, EventId>> rest;
  for (EventId id = 0; id < flow_.events.size(); ++id) {
    const Event& event = flow_.events[id];
    if (!event.birth || event.assumed || used_[id]) continue;
    if (event.from != Event::From::kOp && event.first_reader == kNone) continue;  // nobody looked
    rest.emplace_back(when(flow_, id), id);
  }
  std::ranges::sort(rest);
  OpId last = kNone;
  for (const auto& [moment, id] : rest) {
    if (out->absorbed.size() == kMaxAbsorbed) break;
    const OpId op = flow_.events[id].op;
    if (op != kNone && op == last) continue;
    last = op;
    Birth birth = describe(trace_, flow_, id, kNone);
    if (out->absorbed.size() < kMaxExplained) birth.absorbed_by = find_absorber(trace_, flow_, id, kNone);
    out->absorbed.push_back(std::move(birth));
  }
}

Located Slicer::run() && {
  std::vector<std::uint32_t> losses, others;
  for (std::uint32_t i = 0; i < trace_.sinks.size(); ++i) {
    if (flow_.sink_reads[i].count == 0) continue;
    (trace_.sinks[i].kind == "loss" ? losses : others).push_back(i);
  }
  loss_is_bad_ = !losses.empty();
  for (const auto& sinks : {losses, others}) {
    for (const std::uint32_t sink : sinks) slice(sink);
  }
  explain_crossings();
  for (const std::uint32_t sink : losses) slice_intended(sink);
  // Among many parameters one is enough to say.
  for (std::size_t i = 0; i < others.size() && candidates_.empty(); ++i) slice_intended(others[i]);

  const auto order = [](const Candidate& a, const Candidate& b) {
    if (a.from_loss != b.from_loss) return a.from_loss;
    return std::pair(a.when, a.event) < std::pair(b.when, b.event);
  };
  std::ranges::sort(candidates_, order);
  std::ranges::sort(hidden_, order);
  Located out;
  std::vector<OpId> named;
  const auto is_named = [&](OpId op) { return op != kNone && std::ranges::find(named, op) != named.end(); };
  for (auto* list : {&candidates_, &hidden_}) {
    for (Candidate& candidate : *list) {
      if (out.births.size() == kMaxBirths) break;
      OpId op = candidate.birth ? candidate.birth->op : flow_.events[candidate.event].op;
      if (is_named(op)) continue;  // several outputs of one op
      if (!candidate.birth) {
        candidate.birth = described(candidate.event, candidate.sink);
        const std::vector<OpId> rest = path_from(flow_, search_, candidate.event);
        candidate.birth->path.insert(candidate.birth->path.end(), rest.begin(), rest.end());
        candidate.birth->path = shorten(std::move(candidate.birth->path));
        if (std::exchange(op, candidate.birth->op) != op && is_named(op)) continue;  // several readers of one write
      }
      named.push_back(op);
      hidden_in_forward(candidate);
      out.births.push_back(std::move(*candidate.birth));
    }
  }
  list_absorbed(&out);
  return out;
}

}  // namespace

Located locate(const record::Trace& trace) {
  Located found = Slicer(trace, {}).run();
  const Meant meant = dropped_by_program(trace, found);
  if (meant.empty()) return found;
  Located again = Slicer(trace, meant).run();
  if (again.births.empty()) return found;
  // What hid it in forward.
  const auto hid = std::ranges::find_if(
      found.births, [](const Birth& birth) { return birth.kind == "data" && birth.absorbed_by != kNone; });
  for (Birth& birth : again.births)
    if (hid != found.births.end() && birth.kind == "backward" && birth.absorbed_by == kNone)
      birth.absorbed_by = hid->absorbed_by;
  again.meant = meant;
  return again;
}

}  // namespace finitude::locate
