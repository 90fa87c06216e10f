// The log-probability of an event that a mask made impossible is -Inf by intent; a loss that averages over it
// is not. Its first link is the log of a probability of exactly zero.
#include <cmath>

#include "explain/edits.h"
#include "explain/origin.h"
#include "explain/probe.h"
#include "explain/rules/rules.h"

namespace finitude::explain {
namespace {

// Follows the infinite input back; true where a log-probability lies on the way from the mask.
bool through_log_probability(const Scene& s, const record::TensorUse& start) {
  const record::TensorUse* at = &start;
  record::OpId reader = s.birth.op;
  for (int step = 0; step < 64 && at; ++step) {
    const record::OpId made = producer(s.trace, reader, *at);
    if (made == record::kNone) return false;
    const record::Op& op = s.trace.ops[made];
    if (one_of(plain_name(op.name), {"log_softmax", "log_sigmoid", "log_sigmoid_forward"})) {
      const auto* masked = bad_input(op);
      return masked && masked->health.neg_inf > 0 && bad_origin(s.trace, made, *masked).intended;
    }
    at = bad_input(op), reader = made;
  }
  return false;
}

class ImpossibleEvent : public Rule {
 public:
  const char* name() const override { return "impossible-event"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    if (!s.op || s.backward) return std::nullopt;
    const auto* bad = bad_output(*s.op);
    const auto* in = bad_input(*s.op);
    if (!bad || !in || bad->health.nan > 0 || in->health.nan > 0 || !through_log_probability(s, *in))
      return std::nullopt;
    Finding result = finding(s, "log-of-zero", kScorePoint - 10,
                             "the log of a probability that a mask made exactly zero enters the loss: " +
                                 counted(in->health.inf(), "infinite log-probability") + " in the input of " +
                                 s.op->name + at_rows(s.birth),
                             "leave the masked classes out of the average (label smoothing over allowed "
                             "classes only), or mask with torch.finfo(dtype).min");
    Probe probe(s, s.birth.op);
    Variant floor;
    floor.replace_arg = in->arg;
    floor.replace_from = in->health.neg_inf ? -INFINITY : INFINITY;
    floor.replace_to = 0;
    if (!in->arg.empty())
      probe.finite_if(figure(floor.replace_from) + " in " + in->arg + " replaced by 0", floor);
    probe.in_float64(false);
    probe.conclude(result, true);
    if (!in->arg.empty()) Edits(s, s.birth.op).replaced(in->arg, floor.replace_from, 0).into(result);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> impossible_event() { return std::make_unique<ImpossibleEvent>(); }

}  // namespace finitude::explain
