// A value, or an epsilon, that became 0 by underflow and was then divided by, logged, or differentiated at.
//
// The split against log-of-zero: softmax, sigmoid and exponentials over their sum end at 0 or 1 by design, so
// a zero from them is the fault of the log (log-of-zero). An exponential, product or power that is not
// normalised afterwards (a likelihood, a kernel matrix, a variance) has lost its value before anyone took the
// log: that is underflow. In half precision half-precision-underflow speaks instead.
#include <algorithm>

#include "explain/edits.h"
#include "explain/origin.h"
#include "explain/probe.h"
#include "explain/rules/rules.h"
#include "explain/singular.h"
#include "explain/written_softmax.h"

namespace finitude::explain {
namespace {

// A probability may be an exact 0 by rounding: to take its log is the log's fault, to divide by it is as with any other
// value that is lost.
bool rounded_to_zero(const record::Trace& trace, const EdgeOrigin& origin, const Point& point) {
  if (origin.op >= trace.ops.size() || origin.edge != 0) return false;  // at 1 it saturates as well
  const auto& made = trace.ops[origin.op].outputs;
  if (std::none_of(made.begin(), made.end(), [](const record::TensorUse& use) { return use.health.zero != 0; }))
    return false;
  return origin.kind == EdgeKind::kSaturated && point.kind != PointKind::kLog && point.edge == 0 &&
         one_of(plain_name(trace.ops[origin.op].name), {"softmax", "safe_softmax", "sigmoid", "erfc", "ndtr"});
}

class Underflow : public Rule {
 public:
  const char* name() const override { return "underflow"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    if (!s.first || !bad_output(*s.first)) return std::nullopt;
    const auto point = find_point(*s.first);
    if (!point || !point->operand.tensor) return std::nullopt;
    const EdgeOrigin origin = edge_origin(s.trace, s.culprit, *point->operand.tensor, point->edge);
    if (origin.op == record::kNone || origin.half) return std::nullopt;
    const bool lost = origin.kind == EdgeKind::kEpsilonLost;
    if (origin.kind != EdgeKind::kUnderflow && !lost && !rounded_to_zero(s.trace, origin, *point)) return std::nullopt;
    const record::Op& made = s.trace.ops[origin.op];
    const std::string name = plain_name(made.name), type = dtype_name(result_dtype(made));
    std::string text = lost ? "the epsilon " + figure(origin.epsilon) + " is lost to rounding in " + type
                            : name + " underflowed to an exact zero in " + type;
    const Operand argument = operand(made, "self", 0);
    if (!lost && argument) text += " (its argument goes down to " + figure(argument.min()) + ")";
    const bool derivative = s.backward && !s.forward_bad();
    if (lost) text += ", which leaves an exact zero";
    text += point->kind == PointKind::kLog ? ", and its log was taken"
            : derivative                   ? ", and the derivative there was divided by it"
            : lost                         ? ", and that was then divided by"
                                           : ", and was then divided by";
    text += hidden_by(s);
    const bool exponential = one_of(name, {"exp", "exp2"});
    const bool is_forward_exp = name == "exp" && !s.backward;
    const bool is_softmax = is_forward_exp && sum_of_softmax(s.trace, origin.op) != record::kNone;
    std::string fix =
        lost ? "clamp it above zero; or, not tried here, an epsilon that the format can hold"
        : name == "exp" && plain_name(s.first->name) == "log" &&
                producer(s.trace, s.culprit, *point->operand.tensor) == origin.op
            ? "the log of an exponential is its exponent: remove both"
        : exponential && point->kind == PointKind::kLog ? "stay in the log domain: torch.logsumexp of the exponents"
        : is_softmax                                    ? "torch.softmax(x, dim), which subtracts the maximum first"
        : exponential ? "stay in the log domain (exp(0.5 * x) for sqrt(exp(x)), log-domain scaling), or a larger floor"
                      : "compute in the log domain or float64, or clamp away from zero";
    Finding result = finding(s, "underflow", kScorePoint + 20, text, fix);
    result.fix_is_no_edit = !lost;
    Probe probe(s, s.culprit);
    if (point->kind == PointKind::kLog)
      probe.clamped(point->arg, point->edge + safe_floor(point->operand.dtype()));
    else
      probe.zeros_replaced(point->arg);
    probe.without_rows();
    probe.in_float64(false);
    probe.conclude(result, true);
    Edits edits(s);
    // What the text names of a lost epsilon is the clamp.
    const std::size_t named = lost ? SIZE_MAX : 0;
    if (point->kind == PointKind::kLog && !derivative)
      edits.above(point->arg, point->edge).named_by_rule(named);
    else if (derivative)
      edits.above("self", 0).named_by_rule(named).left_out();
    else if (lost)
      edits.above(point->arg, 0).named_by_rule().replaced(point->arg, 0, 1);
    else  // a floor keeps the direction of what was lost; another number in its place does not
      edits.above(point->arg, 0).replaced(point->arg, 0, 1);
    edits.into(result);
    if (is_forward_exp) {
      Edits of_exp(s, origin.op);
      add_less_maximum(of_exp, s.trace, origin.op);
      of_exp.into(result);
    }
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> underflow() { return std::make_unique<Underflow>(); }

}  // namespace finitude::explain
