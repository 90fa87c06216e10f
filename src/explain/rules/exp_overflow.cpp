// exp, exp2, expm1, sinh or cosh of an argument too large for the format.
#include <cmath>

#include "explain/edits.h"
#include "explain/origin.h"
#include "explain/probe.h"
#include "explain/range.h"
#include "explain/rules/rules.h"
#include "explain/written_softmax.h"

namespace finitude::explain {
namespace {

// Exponentials that are summed: what is computed of the sum. Where they are divided by it, the first edit subtracts the
// maximum.
std::string of_sum(const Scene& s) {
  const bool is_softmax = sum_of_softmax(s.trace, s.culprit) != record::kNone;
  for (const record::OpId id : s.birth.path) {
    if (id >= s.trace.ops.size() || plain_name(s.trace.ops[id].name) != "log") continue;
    return is_softmax ? "; or, not tried here, F.log_softmax(x, dim) in the place of log(exp(x) / sum(exp(x)))"
                      : "; or, not tried here, torch.logsumexp(x, dim) in the place of log(sum(exp(x)))";
  }
  if (is_softmax) return {};
  return "; or, not tried here, subtract its maximum first, as torch.softmax and torch.logsumexp do";
}

// Functions that compute what becomes of the exponential without it; where what reads it shows that they are meant.
std::string other_way(const Scene& s) {
  if (s.culprit != s.birth.op) return {};
  bool adds_one = false, subtracts_one = plain_name(s.first->name) == "expm1";
  for (const record::OpId id : s.birth.path) {
    if (id >= s.trace.ops.size()) break;
    const std::string name = plain_name(s.trace.ops[id].name);
    if (name == "log1p" || (name == "log" && adds_one))
      return "; or, not tried here, F.softplus in the place of log(1 + exp(x))";
    if (subtracts_one && name != "log") break;
    if (subtracts_one)  // the inverse of softplus is about x where x is large
      return "; or, not tried here, x + torch.log(-torch.expm1(-x)) in the place of log(exp(x) - 1)";
    if (name == "reciprocal" || (name == "div" && adds_one))
      return "; or, not tried here, torch.sigmoid in the place of 1 / (1 + exp(-x))";
    if (one_of(name, {"sum", "div"})) return of_sum(s);
    if (name == "log" && plain_name(s.first->name) == "cosh")
      return "; or, not tried here, x.abs() + F.softplus(-2 * x.abs()) - math.log(2) in the place of log(cosh(x))";
    if (name == "sub") {
      subtracts_one = true;
      continue;
    }
    if (name != "add") break;
    adds_one = true;
  }
  return {};
}

class ExpOverflow : public Rule {
 public:
  const char* name() const override { return "exp-overflow"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    const auto excess = s.first ? find_excess(*s.first) : std::nullopt;
    if (!excess || !excess->exponential) return std::nullopt;
    const double edge = largest_exponent(excess->dtype);
    const std::string op = plain_name(s.first->name);
    std::string text = op + " of " + figure(excess->argument) + " is beyond " + dtype_name(excess->dtype) +
                       ", which ends at exp(" + figure(edge) + ")" + (s.culprit == s.birth.op ? at_rows(s.birth) : "") +
                       hidden_by(s);
    std::string fix = "bound the argument: clamp it" + other_way(s);
    if (s.birth.absorbed_by < s.trace.ops.size()) {
      const std::string hides = plain_name(s.trace.ops[s.birth.absorbed_by].name);
      fix = (one_of(hides, {"where", "masked_fill"}) ? "double where: " : "") +
            ("bound the argument: clamp it before " + op) + " as well; what " + hides +
            " does to the result comes too late for the gradient" + other_way(s);
    }
    Finding result = finding(s, "exp-overflow", kScoreRange + 20, text, fix);
    Probe probe(s, s.culprit);
    Variant bounded;
    bounded.clamp_arg = "self";
    bounded.clamp_min = 1 - edge;
    bounded.clamp_max = edge - 1;
    probe.finite_if("self clamped at " + figure(edge - 1), bounded);
    if (excess->argument < 700) probe.in_float64(true);
    probe.without_rows();
    probe.conclude(result, true);
    // What is computed of it next may need room as well: a sum, a product.
    const double inside = std::floor(edge * 10) / 10 < edge ? std::floor(edge * 10) / 10 : edge - 0.1;
    Edits edits(s);
    for (const double bound : {inside, std::floor(edge / 2), std::floor(edge / 4)}) {
      if (one_of(op, {"cosh", "sinh"}))
        edits.between("self", -bound, bound);
      else
        edits.at_most("self", bound);
    }
    edits.named_by_rule();
    add_less_maximum(edits, s.trace, s.culprit);
    edits.into(result);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> exp_overflow() { return std::make_unique<ExpOverflow>(); }

}  // namespace finitude::explain
