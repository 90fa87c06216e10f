// Finite gradients in, a non-finite update or state out: 0 / 0 or an overflow inside the optimizer.
#include <algorithm>

#include "explain/edits.h"
#include "explain/origin.h"
#include "explain/probe.h"
#include "explain/range.h"
#include "explain/rules/rules.h"
#include "explain/singular.h"

namespace finitude::explain {
namespace {

// What the operation says by itself, in an optimizer as anywhere else: a matrix that is singular, an argument outside
// of the domain. Nothing where that is a zero in a denominator or an overflow, of which an optimizer has causes of its
// own.
std::optional<Finding> by_itself(const Evidence& evidence, bool is_known) {
  if (auto found = degenerate_linalg()->judge(evidence)) return found;
  if (is_known) return std::nullopt;
  for (const auto& rule : {negative_domain, log_of_negative, domain_edge})
    if (auto found = rule()->judge(evidence)) return found;
  return std::nullopt;
}

// 1 - b ** n with n = 0: a bias correction before the first step was counted. Another number in the place of that zero
// makes the step finite, and its size is by chance.
bool counts_from_zero(const Scene& s, const Operand& denominator) {
  if (!denominator.tensor) return false;
  const record::OpId difference = producer(s.trace, s.culprit, *denominator.tensor);
  if (difference == record::kNone || !one_of(plain_name(s.trace.ops[difference].name), {"rsub", "sub"})) return false;
  return std::ranges::any_of(s.trace.ops[difference].inputs, [&](const record::TensorUse& in) {
    const record::OpId power = producer(s.trace, difference, in);
    if (power == record::kNone || plain_name(s.trace.ops[power].name) != "pow") return false;
    const Operand exponent = operand(s.trace.ops[power], "exponent", 1);
    return exponent.tensor && exponent.zeros() == exponent.numel() && exponent.numel() != 0;
  });
}

class OptimizerArithmetic : public Rule {
 public:
  const char* name() const override { return "optimizer-arithmetic"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    if (!s.op || s.birth.kind != "optimizer" || !inputs_finite(*s.first)) return std::nullopt;
    const auto* bad = bad_output(*s.first);
    if (!bad) return std::nullopt;
    const auto point = find_point(*s.first);
    const auto excess = find_excess(*s.first);
    std::string who = evidence.history.optimizer.empty() ? "the optimizer" : evidence.history.optimizer;
    const bool in_program = s.first->stack < s.trace.stacks.size() && s.trace.stacks[s.first->stack].in_optimizer;
    if (in_program) who = s.trace.stacks[s.first->stack].frames.front().function + " of the optimizer";
    if (auto found = by_itself(evidence, point || excess)) {
      found->text = who + ": " + found->text;
      found->score += kScoreSetting + 10 - kScorePoint;
      if (!in_program && found->cause_class != "degenerate-linalg") {  // no line of the program has that operand
        found->fix_text = evidence.history.optimizer == "RMSprop"
                              ? "centered=False: with it RMSprop subtracts a square, and rounding makes the difference "
                                "negative where gradients hardly change"
                              : "change a setting of the optimizer or scale what it is given";
        found->fix_is_no_edit = true;
        for (auto& edit : found->edits) edit.code.clear();
      }
      found->cause_class = "optimizer-arithmetic";
      return found;
    }
    const bool is_root = plain_name(s.first->name) == "rsqrt";
    std::string text = who + " makes ", fix;
    if (point && point->kind == PointKind::kLog) {
      text += "a logarithm of " + std::string(point->edge == 0 ? "zero" : figure(point->edge)) + " in " + s.first->name;
      fix = "add an epsilon to what the logarithm is taken of";
    } else if (point) {
      text += (bad->health.nan ? "0 / 0" : "x / 0") + std::string(" in ") + s.first->name + " (" +
              zeros_of(point->operand) + " in the denominator)";
      fix = is_root ? "clamp above zero before the root (an epsilon behind it adds to an infinity)"
                    : "clamp the denominator above zero; or, not tried here, an epsilon in it";
    } else if (excess) {
      text += "an overflow in " + s.first->name + " (largest operand " + figure(excess->largest) + ", limit " +
              figure(excess->limit) + ")";
      fix = "clip gradients before the optimizer, or keep its state in a wider format";
    } else {
      text += "a non-finite value in " + s.first->name + " from finite inputs";
      fix = "check the optimizer's epsilon and hyper-parameters";
    }
    const bool uncounted = point && counts_from_zero(s, point->operand);
    if (uncounted) {
      text += ": it is 1 - b ** n with n = 0";
      fix = "count the step before this line: the correction of the first step is 1 - b ** 1";
    }
    Finding result = finding(s, "optimizer-arithmetic", kScoreSetting + 10, text, fix);
    result.fix_is_no_edit = uncounted;
    result.is_overflow = !point && excess;
    Probe probe(s, s.culprit);
    if (point && point->operand.tensor) probe.zeros_replaced(point->arg);
    if (point)
      probe.in_float64(false);
    else if (excess && excess->dtype != sense::DType::kFloat64)
      probe.in_float64(true);
    probe.conclude(result, point || excess);
    if (point && is_root)
      Edits(s, s.culprit).above(point->arg, 0).named_by_rule().replaced(point->arg, 0, 1).into(result);
    if (point && !is_root) Edits(s, s.culprit).replaced(point->arg, 0, 1).above(point->arg, 0).into(result);
    if (uncounted)
      for (auto& edit : result.edits) edit.code.clear();
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> optimizer_arithmetic() { return std::make_unique<OptimizerArithmetic>(); }

}  // namespace finitude::explain
