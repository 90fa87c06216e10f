// A logarithm of an exact zero (log1p of -1, logit of 0 or 1, xlogy with 0 on the right).
#include "explain/edits.h"
#include "explain/origin.h"
#include "explain/probe.h"
#include "explain/rules/rules.h"
#include "explain/singular.h"

namespace finitude::explain {
namespace {

// How the zero came about, for the reader; the split against `underflow` is that rule's business.
std::string how(const Scene& s, const EdgeOrigin& origin) {
  if (origin.op == record::kNone) return {};
  const record::Op& made = s.trace.ops[origin.op];
  const std::string name = plain_name(made.name), type = dtype_name(result_dtype(made));
  switch (origin.kind) {
    case EdgeKind::kSaturated: {
      const bool softmax = one_of(name, {"exp", "softmax", "safe_softmax"});
      return std::string(": ") + (softmax ? "softmax" : name) + (softmax ? " underflowed in " : " saturated in ") +
             type;
    }
    case EdgeKind::kUnderflow:
      return ": " + name + " underflowed in " + type;
    case EdgeKind::kCancelled:
      return one_of(name, {"sub", "rsub", "add"}) ? ": " + name + " of equal numbers"
                                                  : ": what " + name + " adds cancels";
    case EdgeKind::kEpsilonLost:
      return ": " + figure(origin.epsilon) + " is lost to rounding in " + type;
    case EdgeKind::kRounded:
      return ": " + name + " of a number near 0 is 1 in " + type;
    case EdgeKind::kNumberIsEdge:
      return ": " + rounded_number(s.trace, origin);
    case EdgeKind::kGiven:
      return {};
  }
  return {};
}

// logit has two ends: one that is clamped at 0 alone is still infinite at 1.
bool is_logit(const Scene& s) { return one_of(plain_name(s.first->name), {"logit", "special_logit"}); }

Advice fix_for(const Scene& s, const Point& point, const std::string& cause) {
  std::string fix;
  Advice::Way way = Advice::Way::kOther;
  if (is_logit(s))
    fix = "clamp the argument into (0, 1), as torch.logit(p, eps=1e-6) does" +
          std::string(cause.find("sigmoid") == std::string::npos
                          ? ""
                          : "; or, not tried here, take what the sigmoid was given: that is its logit");
  else if (cause.find("softmax") != std::string::npos) {
    fix = "F.log_softmax(logits, dim), or F.cross_entropy on the logits";
    way = Advice::Way::kNoEdit;
  } else if (cause.find("sigmoid") != std::string::npos) {
    fix = "F.binary_cross_entropy_with_logits on the logits, or F.logsigmoid";
    way = Advice::Way::kNoEdit;
  } else if (cause.find("near 0 is 1") != std::string::npos) {
    fix = "torch.expm1(x) in the place of exp(x) - 1";
    way = Advice::Way::kNoEdit;
  } else if (point.edge < 0)
    fix = "clamp the argument of log1p above -1";
  else if (point.arg == "other")
    fix = "clamp what " + plain_name(s.first->name) + " takes the logarithm of, its second argument, above zero";
  else
    fix = "clamp(min=" + figure(in_two_digits(safe_floor(point.operand.dtype()))) + ") before the logarithm";
  if (s.birth.absorbed_by != record::kNone || s.backward)
    fix += "; where zeros are masked out, put a harmless value in with torch.where before the logarithm as well";
  return {fix, way};
}

// Where -Inf is harmless by itself, as before a softmax, what it becomes NaN in: the first on the path that reads
// infinities and makes NaN, with the rows of that.
std::string turned_to_nan(const Scene& s) {
  if (s.culprit != s.birth.op || s.backward) return {};
  for (const record::OpId id : s.birth.path) {
    if (id >= s.trace.ops.size()) return {};
    const record::Op& op = s.trace.ops[id];
    const auto* in = bad_input(op);
    const auto* out = bad_output(op);
    if (!in || !out || in->health.nan != 0) return {};
    if (out->health.nan == 0) continue;
    const bool fewer = out->health.nan < in->health.inf() || plain_name(op.name).find("softmax") != std::string::npos ||
                       plain_name(op.name) == "sub";
    if (!fewer || in->health.pos_inf != 0) return {};
    locate::Birth at;
    at.rows = out->bad_rows;
    return "; not each -Inf does harm, but where nothing else is left " + op.name + at_line(s.trace, op) +
           " makes NaN of them" + at_rows(at);
  }
  return {};
}

// The derivative of log is 1 / x: its zero denominator says even where the forward op is not in the trace.
bool is_log_node(const Scene& s) {
  return s.backward && s.culprit == s.birth.op && s.node && is_builtin_node(*s.node) &&
         one_of(plain_name(s.node->name), {"Log", "Log2", "Log10", "Log1P", "Xlogy", "Logit"});
}

Finding in_backward(const Scene& s, const Point& point) {
  const std::string node = plain_name(s.node->name);
  Finding result = finding(s, "log-of-zero", kScorePoint,
                           "log of an exact zero: its derivative divides by it (" + zeros_of(point.operand) + ")" +
                               at_rows(s.birth) + hidden_by(s),
                           std::string("clamp the argument above ") + (node == "Log1P" ? "-1" : "zero"));
  Probe probe(s, s.birth.op);
  probe.zeros_replaced(point.arg);
  probe.in_float64(false);
  probe.without_rows();
  probe.conclude(result, true);
  Edits(s).above(node == "Xlogy" ? "other" : "self", node == "Log1P" ? -1 : 0).named_by_rule().left_out().into(result);
  return result;
}

class LogOfZero : public Rule {
 public:
  const char* name() const override { return "log-of-zero"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    if (!s.first) return std::nullopt;
    const auto point = find_point(*s.first);
    if (point && point->kind == PointKind::kDivide && is_log_node(s)) return in_backward(s, *point);
    if (!point || point->kind != PointKind::kLog) return std::nullopt;
    const auto* bad = bad_output(*s.first);
    if (!bad || bad->health.inf() == 0) return std::nullopt;
    const EdgeOrigin origin =
        point->operand.tensor ? edge_origin(s.trace, s.culprit, *point->operand.tensor, point->edge) : EdgeOrigin{};
    const std::string cause = how(s, origin);
    std::string text = "log of an exact zero" + cause;
    const bool both = is_logit(s) && point->edge == 0 && point->operand.has(1);
    const std::string what = both               ? "both 0 and 1 are in " + point->arg
                             : point->edge == 0 ? counted(point->operand.zeros(), "zero") + " in " + point->arg
                                                : point->arg + " is " + figure(point->edge);
    text += " (" + what + (s.culprit == s.birth.op ? at_rows(s.birth) : "") + ")" + turned_to_nan(s) + hidden_by(s);
    Advice fix = fix_for(s, *point, cause);
    if (origin.kind == EdgeKind::kNumberIsEdge) fix.text += "; or, not tried here, " + distinct_number(s.trace, origin);
    Finding result = finding(s, "log-of-zero", kScorePoint, text, fix.text);
    result.fix_is_no_edit = fix.way == Advice::Way::kNoEdit;
    Probe probe(s, s.culprit);
    if (is_logit(s)) {
      Variant inside;
      inside.clamp_arg = point->arg;
      inside.clamp_min = 1e-3;
      inside.clamp_max = 1 - 1e-3;
      probe.finite_if(point->arg + " clamped to [0.001, 0.999]", inside);
    } else
      probe.clamped(point->arg, point->edge + (point->edge < 0 ? 1e-3 : safe_floor(point->operand.dtype())));
    probe.in_float64(false);
    probe.without_rows();
    probe.conclude(result, true);
    Edits edits(s);
    if (is_logit(s))
      edits.inside(point->arg, 0, 1).named_by_rule();
    else if (point->edge < 0 || point->arg == "other")
      edits.above(point->arg, point->edge).named_by_rule();
    else
      edits.above(point->arg, 0).named_by_rule(1);  // the text has the number of the first
    edits.left_out().into(result);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> log_of_zero() { return std::make_unique<LogOfZero>(); }

}  // namespace finitude::explain
