// The log-probability of an event that a mask made impossible is -Inf by intent; a loss that averages over it
// is not. Its first link is the log of a probability of exactly zero.
#include <algorithm>
#include <cmath>

#include "explain/edits.h"
#include "explain/origin.h"
#include "explain/probe.h"
#include "explain/rules/rules.h"

namespace finitude::explain {
namespace {

// Put there by the program: a number, or a buffer or input of nothing but zeros, such numbers and infinities.
bool meant(const record::Trace& trace, const BadOrigin& origin, const record::TensorUse& use) {
  if (origin.intended) return true;
  if (origin.op != record::kNone || origin.storage >= trace.storages.size()) return false;
  return use.health.nan == 0 && use.health.inf() != 0 &&
         trace.storages[origin.storage].origin == record::Origin::kBuffer;
}

// A total over all events: logsumexp, or what it is made of.
bool is_total(const record::Trace& trace, record::OpId reader, const record::TensorUse& use) {
  const record::TensorUse* at = &use;
  for (int step = 0; step < 16 && at; ++step) {
    const record::OpId made = producer(trace, reader, *at);
    for (record::OpId id = made, depth = 0; id < trace.ops.size() && depth < 8; ++depth, id = trace.ops[id].parent)
      if (plain_name(trace.ops[id].name) == "logsumexp") return true;
    if (made == record::kNone) return false;
    const record::Op& op = trace.ops[made];
    at = is_carrier(op)                                                  ? carried(op)
         : one_of(plain_name(op.name), {"squeeze", "add", "mul", "sum"}) ? operand(op, "self", 0).tensor
                                                                         : nullptr;
    reader = made;
  }
  return false;
}

struct Event {
  bool of_log_softmax = false;          // else: a score less the total of all
  record::OpId put_in = record::kNone;  // what wrote the infinity
  record::StorageId carried_by = record::kNone;
};

// Follows the infinite input back to what forbids the event; nothing where no log-probability lies on the way.
std::optional<Event> forbidden(const Scene& s, const record::TensorUse& start) {
  const record::TensorUse* at = &start;
  record::OpId reader = s.birth.op;
  bool log_softmax = false, less_total = false;
  const auto takes_total = [&](record::OpId id) {
    const record::Op& op = s.trace.ops[id];
    if (!one_of(plain_name(op.name), {"sub", "add", "rsub"})) return false;
    return std::ranges::any_of(
        op.inputs, [&](const record::TensorUse& in) { return in.health.ok() && is_total(s.trace, id, in); });
  };
  less_total = takes_total(s.birth.op);  // of a single sequence, whose loss that is
  for (int step = 0; step < 256; ++step) {
    const record::OpId made = producer(s.trace, reader, *at);
    if (made == record::kNone) break;
    const record::Op& op = s.trace.ops[made];
    const std::string name = plain_name(op.name);
    const record::TensorUse* bad = bad_input(op);
    if (!bad) break;
    log_softmax = log_softmax || one_of(name, {"log_softmax", "log_sigmoid", "log_sigmoid_forward"});
    less_total = less_total || takes_total(made);
    at = bad, reader = made;
  }
  if ((!log_softmax && !less_total) || at->health.nan != 0) return std::nullopt;
  const BadOrigin origin = bad_origin(s.trace, reader, *at);
  if (!meant(s.trace, origin, *at)) return std::nullopt;
  return Event{log_softmax, origin.op, origin.storage};
}

// " (masked_fill at model.py:12)", or the buffer's name.
std::string by_what(const Scene& s, const Event& event) {
  if (event.put_in < s.trace.ops.size()) {
    const record::Op& op = s.trace.ops[event.put_in];
    return " (" + op.name + at_line(s.trace, op) + ")";
  }
  const bool named = event.carried_by < s.trace.storages.size() && !s.trace.storages[event.carried_by].name.empty();
  return named ? " (" + s.trace.storages[event.carried_by].name + ")" : "";
}

class ImpossibleEvent : public Rule {
 public:
  const char* name() const override { return "impossible-event"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    if (!s.op || s.backward) return std::nullopt;
    const auto* bad = bad_output(*s.op);
    const auto* in = bad_input(*s.op);
    if (!bad || !in || bad->health.nan > 0 || in->health.nan > 0) return std::nullopt;
    const auto event = forbidden(s, *in);
    if (!event) return std::nullopt;
    Finding result = finding(
        s, "log-of-zero", kScorePoint - 10,
        std::string(event->of_log_softmax ? "the log of a probability that a mask"
                                          : "the log of the probability of an event that a mask") +
            by_what(s, *event) + (event->of_log_softmax ? " made exactly zero" : " forbids, which is exactly zero,") +
            " enters the loss: " + counted(in->health.inf(), "infinite log-probability") + " in the input of " +
            s.op->name + at_rows(s.birth),
        event->of_log_softmax
            ? "exclude the masked classes from the average (label smoothing over allowed classes only), or mask "
              "with torch.finfo(dtype).min"
            : "find the label that the mask forbids and correct it, or skip that sample; or forbid with a "
              "large negative number instead of -Inf");
    Probe probe(s, s.birth.op);
    Variant floor;
    floor.replace_arg = in->arg;
    floor.replace_from = in->health.neg_inf ? -INFINITY : INFINITY;
    floor.replace_to = 0;
    if (!in->arg.empty()) probe.finite_if(figure(floor.replace_from) + " in " + in->arg + " replaced by 0", floor);
    probe.in_float64(false);
    probe.conclude(result, true);
    result.fix_is_no_edit = true;
    if (!in->arg.empty()) Edits(s, s.birth.op).replaced(in->arg, floor.replace_from, 0).into(result);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> impossible_event() { return std::make_unique<ImpossibleEvent>(); }

}  // namespace finitude::explain
