// A value or derivative at the edge of the domain: atanh(1), lgamma at 0 or -1, and in backward sqrt or pow at 0, acos
// at 1, hypot at the origin, the second derivative of a norm at 0, where the forward value is finite.
#include <cmath>

#include "explain/edits.h"
#include "explain/origin.h"
#include "explain/probe.h"
#include "explain/rules/rules.h"
#include "explain/singular.h"

namespace finitude::explain {
namespace {

struct Edge {
  double at;
  const char* fix;
  bool is_known = true;  // false: one of several poles was met
};

// Its poles are at 0, -1, -2 and so on; of a large argument the value itself is out of range.
bool is_gamma(const std::string& op) { return one_of(op, {"lgamma", "digamma", "polygamma", "mvlgamma"}); }

std::optional<Edge> pole_of(const std::string& op, const Operand& x) {
  if (one_of(op, {"atanh", "arctanh", "erfinv", "special_erfinv"}) && (x.has(1) || x.has(-1)))
    return Edge{x.has(1) ? 1.0 : -1.0, "clamp the argument to (-1 + eps, 1 - eps)"};
  const char* const above = "clamp the argument above zero";
  if (is_gamma(op) && x.has(0)) return Edge{0, above};
  if (is_gamma(op) && x.min() <= -1 && x.absmax() < 1e30 && !x.has_nan() && !x.has_inf()) return Edge{0, above, false};
  return std::nullopt;
}

std::string edge_fix(const std::string& node) {
  if (node == "Sqrt")
    return "clamp the argument above zero before the root; or, not tried here, an epsilon inside it, sqrt(x + eps), or "
           "torch.linalg.vector_norm for a norm";
  if (node == "Pow")
    return "clamp the base above zero; or, not tried here, an epsilon in it, (x + eps) ** p, or an exponent of at "
           "least 1 (2 "
           "for a second derivative)";
  if (node == "Acosh") return "clamp the argument above 1";
  if (one_of(node, {"Acos", "Asin", "Atanh"}))
    return "clamp the argument away from the edge, e.g. to [-1 + eps, 1 - eps]";
  if (one_of(node, {"Atan2", "Angle", "Hypot"})) return "replace (0, 0) with torch.where before the call, not after it";
  const std::string where =
      "give no gradient there: with torch.where another value before the call, and its result in the place of what the "
      "call makes of that; or, not tried here, ";
  if (one_of(node, {"Norm", "LinalgVectorNorm", "Cdist", "Dist", "Std", "StdMean"}))
    return where + "an epsilon: sqrt(sum of squares + eps)";
  return where + "keep the argument away from the edge with an epsilon or a clamp";
}

std::string lowered(std::string name) {
  for (char& c : name) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return name;
}

// At zero these have a corner: a derivative in each direction, of different value.
bool has_corner(const std::string& node) {
  return one_of(lowered(node), {"atan2", "angle", "hypot", "norm", "linalgvectornorm", "linalg_vector_norm", "cdist",
                                "dist", "std", "stdmean", "std_mean"});
}

std::string where_it_fails(const std::string& node) {
  return has_corner(node) ? " does not exist at zero" : " at the edge of its domain is infinite";
}

std::string value_at_fault(const std::string& op, const Operand& x) {
  if (one_of(op, {"acos", "asin", "atanh", "acosh", "arccos", "arcsin", "arctanh", "arccosh", "erfinv"}))
    return x.has(1) && x.has(-1) ? "the values -1 and 1"
                                 : std::string("the value ") + (x.has(1)    ? "1"
                                                                : x.has(-1) ? "-1"
                                                                            : figure(x.max()));
  return x.zeros() ? counted(x.zeros(), "zero") : "the value " + figure(x.max());
}

// The last of the edits. Some texts name it.
void leave_out(Edits& edits, Finding* finding) {
  edits.left_out();
  if (finding->fix_text.find("torch.where") != std::string::npos) edits.named_by_rule();
  edits.into(*finding);
}

// Where a number was to keep the argument from the edge, and is the edge in that format.
struct Rounded {
  std::string why;     // ", as 1 - 1e-09 is 1 in float32"
  std::string advice;  // behind what else there is to do
};

Rounded number_at_edge(const Scene& s, record::OpId call, const Operand& x) {
  for (const double edge : {1.0, -1.0}) {
    if (!x.tensor || !x.has(edge)) continue;
    const EdgeOrigin origin = edge_origin(s.trace, call, *x.tensor, edge);
    if (origin.kind == EdgeKind::kNumberIsEdge)
      return {", as " + rounded_number(s.trace, origin), "; or, not tried here, " + distinct_number(s.trace, origin)};
  }
  return {};
}

std::optional<Finding> value_at_edge(const Scene& s) {
  const std::string op = plain_name(s.first->name);
  const Operand x = operand(*s.first, "self", 0);
  const auto* bad = bad_output(*s.first);
  if (!bad || !x || (bad->health.inf() == 0 && !is_gamma(op))) return std::nullopt;
  const auto edge = pole_of(op, x);
  if (!edge) return std::nullopt;
  const Rounded rounded = number_at_edge(s, s.culprit, x);
  Finding result = finding(s, "domain-edge", kScorePoint,
                           op + " at " +
                               (edge->is_known ? figure(edge->at) + ", the edge of its domain" + rounded.why
                                               : "a negative whole number, where it has a pole") +
                               at_rows(s.birth) + hidden_by(s),
                           edge->fix + rounded.advice);
  Probe probe(s, s.culprit);
  Variant inside;
  inside.clamp_arg = "self";
  inside.clamp_min = edge->at == 0 ? 1e-3 : -1 + 1e-3;
  if (edge->at != 0) inside.clamp_max = 1 - 1e-3;
  probe.finite_if("self clamped away from the edge", inside);
  probe.in_float64(false);
  probe.without_rows();
  probe.conclude(result, true);
  Edits edits(s);
  if (edge->at == 0)
    edits.above("self", 0);
  else
    edits.inside("self", -1, 1);
  edits.named_by_rule().left_out().into(result);
  return result;
}

// By forward mode, inside the call itself: torch.func.jvp, jacfwd, hessian.
std::optional<Finding> in_forward_mode(const Scene& s, record::OpId call) {
  const record::Op& op = s.trace.ops[call];
  const std::string name = plain_name(op.name);
  const Operand x = operand(op, "self", 0);
  std::string node = name;  // as a node of backward is called
  node[0] = static_cast<char>(node[0] - 'a' + 'A');
  Finding result =
      finding(s, "domain-edge", kScorePoint,
              "the derivative of " + name + where_it_fails(name) + ": its argument has " + value_at_fault(name, x) +
                  at_rows(s.birth) + hidden_by(s) + "; the value is finite, its derivative is not",
              edge_fix(name == "linalg_vector_norm" ? "LinalgVectorNorm" : node));
  Probe probe(s, s.culprit);
  if (const auto point = find_point(*s.first)) probe.zeros_replaced(point->arg);
  probe.in_float64(false);
  probe.without_rows();
  probe.conclude(result, true);
  Edits edits(s, call);
  if (one_of(name, {"sqrt", "pow"})) edits.above("self", 0);
  if (one_of(name, {"acos", "asin"})) edits.inside("self", -1, 1);
  if (name == "acosh") edits.inside("self", 1, INFINITY);
  leave_out(edits.named_by_rule(), &result);
  return result;
}

class DomainEdge : public Rule {
 public:
  const char* name() const override { return "domain-edge"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    if (!s.first) return std::nullopt;
    if (!s.backward && s.birth.kind == "forward") {
      if (const record::OpId call = differentiated(s.trace, s.culprit); call != record::kNone)
        return in_forward_mode(s, call);
    }
    if (!s.backward || s.culprit != s.birth.op) return value_at_edge(s);
    if (!s.node || !is_derivative(*s.node) || s.forward_bad()) return std::nullopt;
    const std::string node = plain_name(s.node->name);
    // Divisions and logs at their point are classes of their own.
    if (one_of(node, {"Div", "Reciprocal", "Rsqrt", "Addcdiv", "Log", "Log2", "Log10", "Log1P", "Xlogy", "Logit"}))
      return std::nullopt;
    const bool known = one_of(node, {"Sqrt", "Pow", "Acos", "Asin", "Atanh", "Acosh", "Atan2", "Angle", "Norm", "Hypot",
                                     "LinalgVectorNorm", "Cdist", "Dist", "Std", "StdMean", "Erfinv"});
    const auto point = find_point(*s.op);
    const Operand x = s.forward ? operand(*s.forward, "self", 0) : Operand{};
    const bool at_edge = x && (x.has(0) || x.has(1) || x.has(-1));
    if (!point && !(known && at_edge && bad_output(*s.op) && !bad_input(*s.op))) return std::nullopt;
    const std::string higher = is_of_higher_order(s) ? derivative_of(s) : "";
    std::string text =
        (higher.empty() ? "the derivative of " + (s.forward ? plain_name(s.forward->name) : lowered(node)) : higher) +
        where_it_fails(s.forward ? plain_name(s.forward->name) : node);
    const Rounded rounded = number_at_edge(s, s.birth.forward, x);
    if (x)
      text += ": its argument has " + value_at_fault(plain_name(s.forward->name), x) + rounded.why;
    else if (point)
      text += ": " + counted(point->operand.zeros(), "zero") + " in the denominator of " + s.op->name;
    text += at_rows(s.birth) + hidden_by(s) + "; the forward value is finite, the gradient is not";
    Finding result =
        finding(s, "domain-edge", known ? kScorePoint : kScorePoint - 40, text, edge_fix(node) + rounded.advice);
    Probe probe(s, s.birth.op);
    if (point) probe.zeros_replaced(point->arg);
    probe.in_float64(false);
    probe.without_rows();
    probe.conclude(result, known);
    Edits edits(s);
    if (one_of(node, {"Sqrt", "Pow"})) edits.above("self", 0);
    if (one_of(node, {"Acos", "Asin", "Atanh", "Erfinv"})) edits.inside("self", -1, 1);
    if (node == "Acosh") edits.inside("self", 1, INFINITY);
    leave_out(edits.named_by_rule(), &result);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> domain_edge() { return std::make_unique<DomainEdge>(); }

}  // namespace finitude::explain
