// The mean of nothing: an empty tensor, or a loss whose every target is ignored. A division by zero inside
// the op.
#include "explain/edits.h"
#include "explain/probe.h"
#include "explain/rules/rules.h"

namespace finitude::explain {
namespace {

class EmptyMean : public Rule {
 public:
  const char* name() const override { return "empty-mean"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    if (!s.op || s.backward) return std::nullopt;
    // torch.mean divides in a child op: look at the birth and the ops around it.
    record::OpId id = s.birth.op;
    for (int depth = 0; id < s.trace.ops.size() && depth < 8; ++depth, id = s.trace.ops[id].parent) {
      const record::Op& op = s.trace.ops[id];
      if (op.is_node || op.outputs.empty() || op.inputs.empty()) continue;
      const std::string name = plain_name(op.name);
      // What is missing is NaN by intent; of a row that has nothing else the count is 0.
      const bool nothing_but_nan = name == "nanmean" && id != s.birth.op && op.inputs.front().health.nan != 0 &&
                                   op.inputs.front().health.inf() == 0 && inputs_finite(*s.op);
      if (bad_input(op) && !nothing_but_nan) continue;
      std::string text, fix;
      if (name.starts_with("nll_loss") && name.find("backward") == std::string::npos) {
        if (op.outputs.front().health.nan == 0) continue;
        if (op.outputs.size() > 1 && op.outputs[1].health.zero == 0) continue;  // total weight of the valid targets
        const Operand weight = operand(op, "weight", op.inputs.size());
        text = "the mean over valid targets of a batch that has none: every target is ignored" +
               std::string(weight.tensor && weight.zeros() > 0 ? ", or of a class whose weight is 0" : "") +
               " (total weight 0), 0 / 0";
        fix = "reduction='sum' divided by max(count, 1), which is 0 there; or, not tried here, skip such a batch";
      } else if (nothing_but_nan) {
        text = "nanmean where every element is NaN" + at_rows(s.birth) + ": a mean of nothing, 0 / 0";
        fix =
            "put a value in the place of such a mean, or skip its row; or, not tried here, nansum() / max(count, 1), "
            "which is 0 there";
      } else if (one_of(name, {"mean", "nanmean", "std", "var", "std_mean", "var_mean"})) {
        if (op.inputs.front().health.numel != 0 || op.outputs.front().health.nan == 0) continue;
        text = name + " of an empty tensor: 0 / 0";
        fix = "sum() / max(count, 1), which is 0 there; or, not tried here, skip it when nothing is selected";
      } else {
        continue;
      }
      Finding result = finding(s, "division-by-zero", kScoreOneMeaning, text, fix);
      const record::OpId divides = nothing_but_nan ? s.birth.op : id;  // nanmean is no operator of its own on the tape
      Probe probe(s, divides);
      probe.in_float64(false);
      probe.conclude(result, true);
      Edits(s, divides).left_out().advised({}, "what it makes of nothing replaced by 0").into(result);
      return result;
    }
    return std::nullopt;
  }
};

}  // namespace

std::unique_ptr<Rule> empty_mean() { return std::make_unique<EmptyMean>(); }

}  // namespace finitude::explain
