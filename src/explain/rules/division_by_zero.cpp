// x / 0 and 0 / 0: div, reciprocal, rsqrt, a negative power, remainder. Also the normalising of a zero
// vector.
#include "explain/edits.h"
#include "explain/origin.h"
#include "explain/probe.h"
#include "explain/rules/rules.h"
#include "explain/singular.h"

namespace finitude::explain {
namespace {

// The op that made the first input of another; kNone: none traced.
record::OpId before(const Scene& s, record::OpId id) {
  if (id == record::kNone || s.trace.ops[id].inputs.empty()) return record::kNone;
  return producer(s.trace, id, s.trace.ops[id].inputs[0]);
}

// By what the root is taken of: of a variance, or of a mean or a sum of squares.
std::string what_root_is(const Scene& s, record::OpId root) {
  const record::OpId made = before(s, root);
  if (made == record::kNone) return {};
  const std::string name = plain_name(s.trace.ops[made].name);
  if (one_of(name, {"var", "var_mean"})) return ": a spread of zero";
  const record::OpId squares = before(s, made);
  if (squares == record::kNone || !one_of(plain_name(s.trace.ops[squares].name), {"pow", "square", "mul"})) return {};
  return name == "mean" ? ": a spread of zero" : name == "sum" ? ": the norm of a zero vector" : "";
}

// What the zero is, by the op that made it.
std::string what_is_zero(const Scene& s, const Point& point) {
  if (!point.operand.tensor) return {};
  if (point.arg.empty())  // made inside the op, and handed out
    return point.operand.has_inf() ? ": a spread of zero" : ": the norm of a zero vector";
  const record::OpId made = producer(s.trace, s.culprit, *point.operand.tensor);
  if (made == record::kNone) return {};
  const std::string name = plain_name(s.trace.ops[made].name);
  if (one_of(name, {"norm", "linalg_vector_norm"})) return ": the norm of a zero vector";
  if (one_of(name, {"amax", "max", "abs"})) return ": the largest magnitude of an all-zero tensor";
  if (one_of(name, {"std", "var"})) return ": a spread of zero";
  if (name == "sqrt") return what_root_is(s, made);
  // Through conversions: a count is made of integers or booleans.
  const bool counts = one_of(name, {"count_nonzero", "bincount"}) ||
                      (one_of(name, {"sum", "scatter_add", "index_add"}) && !s.trace.ops[made].inputs.empty() &&
                       s.trace.ops[made].inputs[0].dtype == sense::DType::kOther);
  if (counts ||
      (name == "sum" && s.trace.ops[made].inputs.size() == 1 &&
       s.trace.ops[made].inputs[0].health.zero == s.trace.ops[made].inputs[0].health.numel))
    return ": a count or sum over nothing";
  return {};
}

// What to do about it depends on what the denominator is.
std::string fix_for(const std::string& what, const Point& point) {
  if (what.find("norm of") != std::string::npos) return "F.normalize, or an epsilon added to the norm";
  if (what.find("spread") != std::string::npos) return "add an epsilon to the variance, e.g. (var + eps).sqrt()";
  if (what.find("count") != std::string::npos || is_integral(point.operand)) return "clamp the denominator, .clamp(min=1) for a count";
  return point.operand.numel() <= 1 ? "add an epsilon to the denominator, or leave such a batch out"
                                    : "clamp the denominator or add an epsilon to it";
}

// The rows of the birth are those of its output: they are told only where the denominator has the same.
bool has_rows_of_output(const Operand& operand, const record::TensorUse& output) {
  return operand.tensor && !operand.tensor->shape.empty() && !output.shape.empty() &&
         operand.tensor->shape[0] == output.shape[0];
}

class DivisionByZero : public Rule {
 public:
  const char* name() const override { return "division-by-zero"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    if (!s.first || !bad_output(*s.first)) return std::nullopt;
    // In backward of a finite forward value, a zero denominator is a derivative at an edge (domain-edge)
    // unless the forward op was itself a division.
    if (s.backward && s.culprit == s.birth.op && s.node && is_builtin_node(*s.node) &&
        !one_of(plain_name(s.node->name), {"Div", "Reciprocal", "Rsqrt", "Addcdiv"}))
      return std::nullopt;
    const auto point = find_point(*s.first);
    if (!point || point->kind != PointKind::kDivide) return std::nullopt;
    const auto* bad = bad_output(*s.first);
    const bool zero_over_zero = bad->health.nan > 0;
    std::string text = zero_over_zero ? "0 / 0" : "division by zero";
    const bool rows = s.culprit == s.birth.op && has_rows_of_output(point->operand, *bad);
    const std::string what = what_is_zero(s, *point);
    text += what;
    if (!point->operand.has_inf())
      text += " (the denominator holds " + zeros_of(point->operand) + (rows ? at_rows(s.birth) : "") + ")";
    text += hidden_by(s);
    std::string fix = fix_for(what, *point);
    if (s.birth.absorbed_by != record::kNone || s.backward)
      fix += ", before the division: a mask after it does not protect the gradient";
    Finding result = finding(s, "division-by-zero", kScorePoint, text, fix);
    Probe probe(s, s.culprit);
    if (!point->arg.empty()) probe.zeros_replaced(point->arg);
    probe.in_float64(false);
    probe.without_rows();
    probe.conclude(result, true);
    Edits edits(s);
    if (is_integral(point->operand))
      edits.at_least(point->arg, 1).replaced(point->arg, 0, 1);
    else if (zero_over_zero && point->operand.min() >= 0)
      edits.above(point->arg, 0).replaced(point->arg, 0, 1);
    else
      edits.replaced(point->arg, 0, 1).above(point->arg, 0);
    edits.left_out().into(result);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> division_by_zero() { return std::make_unique<DivisionByZero>(); }

}  // namespace finitude::explain
