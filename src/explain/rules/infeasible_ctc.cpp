// ctc_loss of a sample whose target cannot be aligned with its input: the loss is +Inf by definition.
#include <algorithm>
#include <cstdlib>

#include "explain/edits.h"
#include "explain/probe.h"
#include "explain/rules/rules.h"

namespace finitude::explain {
namespace {

std::vector<std::int64_t> numbers(const record::Op& op, std::string_view arg) {
  std::vector<std::int64_t> found;
  for (const auto& scalar : op.scalars) {
    if (scalar.arg != arg) continue;
    const char* at = scalar.text.c_str();
    while (*at != '\0') {
      char* end = nullptr;
      const long value = std::strtol(at, &end, 10);
      if (end == at)
        ++at;
      else
        found.push_back(value), at = end;
    }
  }
  return found;
}

std::vector<std::int64_t> lengths(const Scene& s, const record::Op& ctc, const std::string& arg) {
  if (s.evidence.lab)
    if (auto known = s.evidence.lab->whole_numbers(static_cast<record::OpId>(&ctc - s.trace.ops.data()), arg))
      return std::move(known->values);
  return numbers(ctc, arg);
}

// Between two equal labels a blank has to lie, so each such pair takes one more step of the input.
std::int64_t equal_neighbours(const replay::Integers& labels, const std::vector<std::int64_t>& of, std::size_t sample) {
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(of[sample], 0));
  std::size_t begin = 0;
  if (labels.shape.size() == 2) {
    begin = sample * static_cast<std::size_t>(labels.shape[1]);
  } else {  // one after the other
    for (std::size_t i = 0; i < sample; ++i) begin += static_cast<std::size_t>(std::max<std::int64_t>(of[i], 0));
  }
  std::int64_t pairs = 0;
  for (std::size_t i = begin + 1; i < std::min(begin + count, labels.values.size()); ++i)
    pairs += labels.values[i] == labels.values[i - 1];
  return pairs;
}

// "sample 2 has a target of 4 with 1 pair of equal neighbours, which needs 5 steps, for an input of 4; sample 3 ...".
// Empty where no sample is known to be too short.
std::string too_short(const std::vector<std::int64_t>& inputs, const std::vector<std::int64_t>& targets,
                      const std::optional<replay::Integers>& labels) {
  constexpr int kNamed = 4;
  std::string text;
  int found = 0;
  for (std::size_t i = 0; i < std::min(inputs.size(), targets.size()); ++i) {
    const std::int64_t pairs = labels ? equal_neighbours(*labels, targets, i) : 0;
    if (targets[i] + pairs <= inputs[i] || ++found > kNamed) continue;
    text += (text.empty() ? ": sample " : "; sample ") + std::to_string(i) + " has a target of " +
            std::to_string(targets[i]);
    if (pairs > 0)
      text += " with " + std::to_string(pairs) + (pairs == 1 ? " pair" : " pairs") +
              " of equal neighbours, which takes " + std::to_string(targets[i] + pairs) + " steps,";
    text += " for an input of " + std::to_string(inputs[i]);
  }
  if (found > kNamed) text += "; and " + std::to_string(found - kNamed) + " more";
  return text;
}

class InfeasibleCtc : public Rule {
 public:
  const char* name() const override { return "infeasible-ctc"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    if (!s.op) return std::nullopt;
    const record::Op* ctc = s.op;
    if (plain_name(ctc->name).find("ctc_loss") == std::string::npos && s.forward) ctc = s.forward;
    if (plain_name(ctc->name).find("ctc_loss") == std::string::npos || ctc->outputs.empty()) return std::nullopt;
    // The first output is the loss; the table after it holds -Inf in healthy runs too.
    const bool backward_op = plain_name(ctc->name).find("backward") != std::string::npos;
    const auto* log_probs = ctc->inputs.empty()
                                ? nullptr
                                : &ctc->inputs[backward_op ? std::min<std::size_t>(1, ctc->inputs.size() - 1) : 0];
    if (!log_probs || log_probs->health.nan > 0) return std::nullopt;
    if (!backward_op && ctc->outputs.front().health.pos_inf == 0) return std::nullopt;
    if (backward_op && ctc->outputs.front().health.ok()) return std::nullopt;
    std::string text =
        "ctc_loss has no alignment for " +
        (backward_op ? std::string("a sample") : counted(ctc->outputs.front().health.pos_inf, "sample")) +
        (numbers(*ctc, "input_lengths").empty() ? at_rows(s.birth) : "");
    const auto inputs = lengths(s, *ctc, "input_lengths"), targets = lengths(s, *ctc, "target_lengths");
    const auto labels =
        s.evidence.lab ? s.evidence.lab->whole_numbers(static_cast<record::OpId>(ctc - s.trace.ops.data()), "targets")
                       : std::nullopt;
    std::string why = too_short(inputs, targets, labels);
    const bool repeats = why.find("equal neighbours") != std::string::npos;
    if (why.empty())
      why = ": a target, each pair of equal neighbours in it counted once more, is longer than its input";
    Finding result = finding(s, "infeasible-ctc", kScoreOneMeaning, text + why,
                             std::string("set zero_infinity=True; or, not tried here, skip such samples") +
                                 (repeats ? ", or keep more steps of their input: at least one for each label and one "
                                            "for each pair of equal neighbours"
                                          : ""));
    Probe probe(s, s.birth.op);
    probe.in_float64(false);
    probe.again();
    probe.conclude(result, true);
    Edits(s, s.backward && s.forward ? s.birth.forward : s.birth.op)
        .left_out(0, "zero_infinity")
        .named_by_rule()
        .into(result);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> infeasible_ctc() { return std::make_unique<InfeasibleCtc>(); }

}  // namespace finitude::explain
