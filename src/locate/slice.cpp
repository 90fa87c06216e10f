// Second pass: the backward slice from every sink, and what it says about causes.
#include "locate/slice.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "locate/births.h"
#include "locate/labels.h"
#include "locate/op_kinds.h"
#include "locate/search.h"

namespace finitude::locate {
namespace {

using record::kNone;
using record::OpId;
using record::Phase;

constexpr std::size_t kMaxBirths = 64, kMaxAbsorbed = 64;
constexpr std::size_t kMaxExplained = 16;  // births for which a search of its own may be spent

class Slicer {
 public:
  explicit Slicer(const record::Trace& trace)
      : trace_(trace), flow_(label(trace)), search_(flow_), used_(flow_.events.size()) {}
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
  bool crosses(const Event& event, Labels labels) const;
  void explain_crossings();
  bool belongs(const Birth& crossing, const Birth& maker) const;
  void list_absorbed(Located* out);

  const record::Trace& trace_;
  const Flow flow_;
  Search search_;
  bool loss_is_bad_ = false;
  std::vector<Candidate> candidates_;
  std::vector<std::pair<EventId, std::uint32_t>> crossings_;  // event, sink
  std::vector<Candidate> hidden_;  // forward births that reached a sink through backward only
  std::vector<bool> used_;         // events named by some birth
};

void Slicer::add(EventId id, std::uint32_t sink, std::optional<Birth> birth) {
  const bool from_loss = sink < trace_.sinks.size() && trace_.sinks[sink].kind == "loss";
  candidates_.push_back({from_loss, when(flow_, id), id, sink, std::move(birth)});
  used_[id] = true;
}

// The loss is fine and yet a gradient computation made something bad of a finite gradient and a bad value of
// the forward pass: that is where it was born. The forward value was hidden there, which is half the story.
bool Slicer::crosses(const Event& event, Labels labels) const {
  return !loss_is_bad_ && event.from == Event::From::kOp && trace_.ops[event.op].phase == Phase::kBackward &&
         (labels & kAnyDamage) == kDamaged;
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
    if (!loss_is_bad_ && event.label == kDamagedGradient && (labels & kDamagedGradient) != 0)
      mask = kDamagedGradient;
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
  Birth birth = describe(trace_, flow_, *at, sink);
  birth.path = shorten(path_from(flow_, search, *at));
  add(*at, sink, std::move(birth));
}

// Did the backward op work for the very forward op that made the bad value (exp saving its own infinity), or did
// that value travel on in the forward pass and some later op saved it? Then its maker is the only birth.
bool Slicer::belongs(const Birth& crossing, const Birth& maker) const {
  for (OpId id = crossing.forward, depth = 0; id < trace_.ops.size() && depth < 64; id = trace_.ops[id].parent, ++depth) {
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
      if (!flow_.events[at].birth)
        behind.follow(reads_of(at), worth_following(labels_of(flow_, reads_of(at))), at);
    }
    EventId creator = kNone;
    for (const EventId at : behind.queue()) {
      if (flow_.events[at].birth && (creator == kNone || when(flow_, at) < when(flow_, creator)))
        creator = at;
    }
    if (creator != kNone) {
      birth.absorbed_by = find_absorber(trace_, flow_, creator, flow_.events[id].moment);
      Birth hidden = describe(trace_, flow_, creator, sink);
      hidden.absorbed_by = birth.absorbed_by;
      hidden.path = path_from(flow_, behind, creator);
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
  // Among many parameters one is enough to tell.
  for (std::size_t i = 0; i < others.size() && candidates_.empty(); ++i) slice_intended(others[i]);

  const auto order = [](const Candidate& a, const Candidate& b) {
    if (a.from_loss != b.from_loss) return a.from_loss;
    return std::pair(a.when, a.event) < std::pair(b.when, b.event);
  };
  std::ranges::sort(candidates_, order);
  std::ranges::sort(hidden_, order);
  Located out;
  std::vector<OpId> named;
  for (auto* list : {&candidates_, &hidden_}) {
    for (Candidate& candidate : *list) {
      const OpId op = flow_.events[candidate.event].op;
      if (out.births.size() == kMaxBirths) break;
      if (op != kNone && std::ranges::find(named, op) != named.end()) continue;  // several outputs of one op
      named.push_back(op);
      if (!candidate.birth) {
        candidate.birth = describe(trace_, flow_, candidate.event, candidate.sink);
        candidate.birth->path = shorten(path_from(flow_, search_, candidate.event));
      }
      out.births.push_back(std::move(*candidate.birth));
    }
  }
  list_absorbed(&out);
  return out;
}

}  // namespace

Located locate(const record::Trace& trace) { return Slicer(trace).run(); }

}  // namespace finitude::locate
