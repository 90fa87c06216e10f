// See put_in.h.
#include "explain/put_in.h"

#include <algorithm>
#include <cmath>

#include "explain/origin.h"
#include "locate/op_kinds.h"

namespace finitude::explain {
namespace {

using record::kNone;
using record::Op;
using record::OpId;
using record::TensorUse;

constexpr std::size_t kMostBirths = 16;

bool infinite(const TensorUse& use) { return use.health.inf() != 0 && use.health.nan == 0; }

// Takes infinities for what they stand for: no element, an impossible event, the end of an interval.
bool respects(const Op& op) {
  const std::string name = plain_name(op.name);
  return op.is_view || is_carrier(op) || locate::is_move(op) || locate::is_select(op) ||
         name.find("softmax") != std::string::npos ||
         one_of(name, {"logsumexp", "logcumsumexp", "log_sigmoid", "log_sigmoid_forward"});
}

struct Way {
  OpId by = kNone, made = kNone, reader = kNone;
  record::StorageId carried_by = kNone;
  const TensorUse* read = nullptr;
  OpId looked_up_by = kNone;  // the first look-up in a table that holds them
  const TensorUse* table = nullptr;
};

// Back from what `reader` reads to what put the infinities in. The last of the ops on the way that does not
// respect them is the first arithmetic.
std::optional<Way> follow(const Scene& s, OpId reader, const TensorUse& use) {
  Way way;
  const TensorUse* at = &use;
  for (int step = 0; step < 256; ++step) {
    const OpId made = bad_producer(s.trace, reader, *at);
    if (!respects(s.trace.ops[reader])) way.reader = reader, way.read = at, way.made = made;
    if (at->storage < s.trace.storages.size() && !s.trace.storages[at->storage].name.empty())
      way.carried_by = at->storage;
    if (made == kNone) {
      if (way.carried_by == kNone) way.carried_by = at->storage;
      break;
    }
    const Op& op = s.trace.ops[made];
    const auto next = std::ranges::find_if(op.inputs, infinite);
    if (next == op.inputs.end()) {
      const auto& handed = s.evidence.located.meant.ops;
      if (locate::inputs_finite(op) && std::ranges::find(handed, made) == handed.end()) return std::nullopt;
      way.by = made;
      break;
    }
    if (!way.table && looks_up(op)) way.looked_up_by = made, way.table = &*next;
    at = &*next, reader = made;
  }
  return way.read ? std::optional(way) : std::nullopt;
}

// The line of the function of `reader` at which what `made` gives comes in.
const record::Frame* comes_out_at(const record::Trace& trace, OpId made, OpId reader) {
  const auto stack_of = [&](OpId id) -> const record::Stack* {
    for (int depth = 0; id < trace.ops.size() && depth < 16; ++depth, id = trace.ops[id].parent)
      if (top_frame(trace, trace.ops[id].stack)) return &trace.stacks[trace.ops[id].stack];
    return nullptr;
  };
  const record::Stack *read = stack_of(reader), *from = stack_of(made);
  if (!read) return nullptr;
  if (!from) return &read->frames.front();
  const record::Frame& in = read->frames.front();
  for (const record::Frame& frame : from->frames)
    if (frame.file == in.file && frame.function == in.function) return &frame;
  return &from->frames.front();
}

std::string place(const record::Frame* frame) {
  return frame ? frame->file.substr(frame->file.rfind('/') + 1) + ":" + std::to_string(frame->line) : std::string();
}

}  // namespace

std::optional<PutIn> put_in(const Scene& s) {
  std::optional<PutIn> found;
  const auto& births = s.evidence.located.births;
  const auto look = [&](OpId id) {
    if (id >= s.trace.ops.size()) return;
    for (const TensorUse& use : s.trace.ops[id].inputs) {
      const auto way = infinite(use) ? follow(s, id, use) : std::nullopt;
      if (!way) continue;
      const double value = way->read->health.pos_inf == 0 ? -INFINITY : way->read->health.neg_inf == 0 ? INFINITY : 0;
      if (!found) found = PutIn{way->by, way->carried_by, way->made, way->looked_up_by, way->table, {}, value};
      if (found->value != value) found->value = 0;
      const std::pair<OpId, std::string> reader{way->reader, way->read->arg};
      if (std::ranges::find(found->readers, reader) == found->readers.end()) found->readers.push_back(reader);
    }
  };
  look(s.birth.op);
  if (!found) return std::nullopt;
  for (std::size_t i = 0; i < std::min(births.size(), kMostBirths); ++i)
    if (&births[i] != &s.birth && births[i].op != s.birth.op) look(births[i].op);
  return found;
}

std::string reported_source(const Scene& s, const PutIn& source) {
  std::string carrier;
  if (source.carried_by < s.trace.storages.size()) carrier = s.trace.storages[source.carried_by].name;
  if (source.by < s.trace.ops.size()) {
    const Op& op = s.trace.ops[source.by];
    if (plain_name(op.name) == "lift_fresh")  // how torch takes in a tensor made of literals
      return "; the infinities are a number in the program" + at_line(s.trace, op) +
             (carrier.empty() ? "" : ", in " + carrier);
    return "; the infinities are written by " + op.name + at_line(s.trace, op) +
           (carrier.empty() ? "" : " and come with " + carrier);
  }
  if (source.table) {
    const auto& health = source.table->health;
    return "; the infinities are read from " + (carrier.empty() ? "a table" : carrier) +
           at_line(s.trace, s.trace.ops[source.looked_up_by]) + ", which has " + counted(health.inf(), "infinity") +
           " among " + counted(health.numel, "value");
  }
  return carrier.empty() ? "" : "; the infinities come with " + carrier;
}

void mend_before_arithmetic(const Scene& s, const PutIn& source, Finding* finding) {
  const record::Trace& trace = s.trace;
  if (source.value == 0 || source.readers.empty()) return;
  replay::Edit edit;
  edit.kind = replay::Edit::Kind::kReplace;
  edit.from = source.value;
  edit.to = 0;
  for (const auto& [reader, arg] : source.readers) {
    const bool twice = std::ranges::find(edit.ops, reader) != edit.ops.end();
    if (arg.empty() || twice || trace.ops[reader].phase == record::Phase::kBackward) return;
    edit.ops.push_back(reader);
    edit.args.push_back(arg);
  }
  const record::Frame* out = comes_out_at(trace, source.made, source.readers.front().first);
  edit.arg = edit.args.front();
  edit.text = figure(edit.from) + " replaced by 0 before " + trace.ops[edit.ops.front()].name +
              at_line(trace, trace.ops[edit.ops.front()]) + " reads it";
  edit.advice =
      "take the " + figure(edit.from) + " out with torch.where where it comes out" +
      (out ? " (" + place(out) + ")" : "") +
      ", before any arithmetic and after any mask that is made from it: torch.where(torch.isfinite(x), x, 0.0)";
  if (source.by < trace.ops.size())
    edit.advice += "; it is put in by " + trace.ops[source.by].name + at_line(trace, trace.ops[source.by]);
  edit.advice += "; a mask that is multiplied on afterwards does not remove it, and the gradient stays NaN";
  if (out) edit.file = out->file, edit.line = out->line;
  finding->edits.push_back(std::move(edit));
}

}  // namespace finitude::explain
