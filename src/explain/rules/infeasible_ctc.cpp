// ctc_loss of a sample whose target cannot be aligned with its input: the loss is +Inf by definition.
#include <algorithm>
#include <cstdlib>

#include "explain/edits.h"
#include "explain/probe.h"
#include "explain/rules/rules.h"

namespace finitude::explain {
namespace {

std::vector<long> numbers(const record::Op& op, std::string_view arg) {
  std::vector<long> found;
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
    const auto inputs = numbers(*ctc, "input_lengths"), targets = numbers(*ctc, "target_lengths");
    for (std::size_t i = 0; i < std::min(inputs.size(), targets.size()); ++i)
      if (targets[i] > inputs[i]) {
        text += ": sample " + std::to_string(i) + " has a target of " + std::to_string(targets[i]) +
                " for an input of " + std::to_string(inputs[i]);
        break;
      }
    if (inputs.empty() || targets.empty()) text += ": the target is longer than the input (repeats count twice)";
    Finding result = finding(s, "infeasible-ctc", kScoreOneMeaning, text,
                             "set zero_infinity=True; or, not tried here, skip such samples");
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
