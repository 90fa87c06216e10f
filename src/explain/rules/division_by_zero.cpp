// x / 0 and 0 / 0: div, reciprocal, rsqrt, a negative power, remainder. Also the normalising of a zero
// vector.
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "explain/edits.h"
#include "explain/nothing.h"
#include "explain/origin.h"
#include "explain/probe.h"
#include "explain/removable.h"
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

// The one factor of a product that has zeros; null where several have, or none (then they are an underflow).
const record::TensorUse* zero_factor(const record::Op& op) {
  if (plain_name(op.name) != "mul") return nullptr;
  const record::TensorUse* found = nullptr;
  for (const auto& use : op.inputs) {
    if (use.dtype == sense::DType::kOther) return nullptr;
    if (use.health.zero == 0) continue;
    if (found) return nullptr;
    found = &use;
  }
  return found;
}

// The op that made the zeros of what `reader` divides by, through products and what only passes values on.
record::OpId maker_of_zeros(const Scene& s, record::OpId reader, const record::TensorUse& use) {
  const record::TensorUse* at = &use;
  record::OpId made = record::kNone;
  for (int step = 0; step < 8 && at; ++step) {
    const record::OpId next = producer(s.trace, reader, *at);
    if (next == record::kNone) break;
    made = reader = next;
    const record::Op& op = s.trace.ops[made];
    at = is_carrier(op) && !looks_up(op) ? carried(op) : zero_factor(op);
  }
  return made;
}

// The root, or power, that made the zeros. Its derivative is infinite there, whatever is done to what it gives.
record::OpId root_of_zeros(const Scene& s, const Point& point) {
  if (!point.operand.tensor || point.arg.empty()) return record::kNone;
  const record::OpId made = maker_of_zeros(s, s.culprit, *point.operand.tensor);
  return made != record::kNone && one_of(plain_name(s.trace.ops[made].name), {"sqrt", "pow"}) ? made : record::kNone;
}

// What the zero is, by the op that made it.
std::string what_is_zero(const Scene& s, const Point& point) {
  if (!point.operand.tensor) return {};
  if (point.arg.empty())  // made inside the op, and handed out
    return point.operand.has_inf() ? ": a spread of zero" : ": the norm of a zero vector";
  const record::OpId made = maker_of_zeros(s, s.culprit, *point.operand.tensor);
  if (made == record::kNone) return {};
  const EdgeOrigin origin = edge_origin(s.trace, s.culprit, *point.operand.tensor, point.edge);
  if (origin.kind == EdgeKind::kNumberIsEdge) return ": " + rounded_number(s.trace, origin);
  if (origin.kind == EdgeKind::kRounded) return ": exp of a number near 0 is 1 in " + dtype_name(point.operand.dtype());
  if (origin.kind == EdgeKind::kSaturated) {
    const std::string of = plain_name(s.trace.ops[origin.op].name);
    return ": " + of + (one_of(of, {"exp", "softmax", "safe_softmax"}) ? " underflowed in " : " saturated in ") +
           dtype_name(result_dtype(s.trace.ops[origin.op]));
  }
  const std::string name = plain_name(s.trace.ops[made].name);
  if (one_of(name, {"div", "true_divide", "reciprocal"})) {
    const Operand divisor = operand(s.trace.ops[made], name == "reciprocal" ? "self" : "other", name != "reciprocal");
    if (divisor.has_inf())
      return ": the denominator is what a division by an infinite value gave" + at_line(s.trace, s.trace.ops[made]);
  }
  if (one_of(name, {"norm", "linalg_vector_norm"})) return ": the norm of a zero vector";
  if (name == "abs") return ": the absolute value of a zero";
  if (one_of(name, {"amax", "max"})) return ": the largest value of an all-zero tensor";
  if (one_of(name, {"std", "var"})) return ": a spread of zero";
  if (name == "sqrt") return what_root_is(s, made);
  if (const auto nothing = sum_of_nothing(s.trace, s.culprit, *point.operand.tensor))
    return reported(*nothing, point.operand.numel() > 1);
  return {};
}

// Is it how many elements a mask selects, or a group has?
bool counts(const Scene& s, const Point& point) {
  if (!point.operand.tensor || point.arg.empty()) return false;
  const auto nothing = sum_of_nothing(s.trace, s.culprit, *point.operand.tensor);
  return nothing == Nothing::kSelected || nothing == Nothing::kInGroup;
}

// The parameter that a tensor is, or is a view or copy of all of it; null where it is none.
const record::Storage* parameter_of(const record::Trace& trace, record::OpId reader, const record::TensorUse* at) {
  for (int step = 0; step < 8 && at; ++step) {
    if (at->storage < trace.storages.size() && trace.storages[at->storage].origin == record::Origin::kParameter)
      return &trace.storages[at->storage];
    const record::OpId made = producer(trace, reader, *at);
    if (made == record::kNone || !is_carrier(trace.ops[made]) || looks_up(trace.ops[made])) return nullptr;
    at = carried(trace.ops[made]), reader = made;
  }
  return nullptr;
}

// Is it computed from the parameter?
bool made_of(const record::Trace& trace, record::OpId reader, const record::TensorUse& use,
             const record::Storage& parameter) {
  std::vector<std::pair<record::OpId, const record::TensorUse*>> open{{reader, &use}};
  for (int step = 0; step < 64 && !open.empty(); ++step) {
    const auto [by, at] = open.back();
    open.pop_back();
    if (at->storage < trace.storages.size() && &trace.storages[at->storage] == &parameter) return true;
    const record::OpId made = producer(trace, by, *at);
    if (made == record::kNone) continue;
    for (const auto& in : trace.ops[made].inputs) open.emplace_back(made, &in);
  }
  return false;
}

// A weight that is divided by a norm of itself (weight_norm, spectral_norm, a parametrization of the program's own):
// which, and where it is zero.
std::string zero_weight(const Scene& s, const Point& point, const std::string& rows) {
  const auto* bad = bad_output(*s.first);
  if (!bad || bad->health.nan == 0 || s.first->inputs.empty() || !point.operand.tensor) return {};
  const record::TensorUse& weight = s.first->inputs[0];
  const record::Storage* parameter = weight.health.zero > 0 ? parameter_of(s.trace, s.culprit, &weight) : nullptr;
  if (!parameter || (!point.arg.empty() && !made_of(s.trace, s.culprit, *point.operand.tensor, *parameter))) return {};
  const std::string text =
      ": the weight " + (parameter->name.empty() ? "" : parameter->name + " ") + "is divided by its own norm, and ";
  if (weight.health.zero == weight.health.numel) return text + "it is all zero";
  const bool one = point.operand.zeros() == 1;
  return text + counted(point.operand.zeros(), "vector") + " of it" +
         (rows.empty() ? "," : " (" + rows.substr(4) + ")") + (one ? " is" : " are") + " all zero";
}

// The norm of what is computed from a weight that is all zero (a power iteration's W^T u): the weight's name.
std::string product_with_zero_weight(const Scene& s, const Point& point) {
  if (!point.operand.tensor || point.arg.empty()) return {};
  const record::OpId norm = maker_of_zeros(s, s.culprit, *point.operand.tensor);
  if (norm == record::kNone || !one_of(plain_name(s.trace.ops[norm].name), {"norm", "linalg_vector_norm"})) return {};
  record::OpId reader = norm;
  const record::TensorUse* at = operand(s.trace.ops[norm], "self", 0).tensor;
  for (int step = 0; step < 8 && at != nullptr; ++step) {
    const record::OpId made = producer(s.trace, reader, *at);
    if (made == record::kNone) return {};
    const record::Op& op = s.trace.ops[made];
    if (one_of(plain_name(op.name), {"mm", "mv", "matmul", "dot", "bmm", "addmv", "addmm"})) {
      const bool adds = plain_name(op.name).starts_with("add");  // its first operand is added to the product
      for (const record::TensorUse& in : std::span(op.inputs).subspan(adds && op.inputs.size() > 1 ? 1 : 0)) {
        const record::Storage* weight =
            in.health.numel > 0 && in.health.zero == in.health.numel ? parameter_of(s.trace, made, &in) : nullptr;
        if (weight) return ": the norm of a product with the weight " + weight->name + ", which is all zero";
      }
      return {};
    }
    if (!is_carrier(op)) return {};
    at = carried(op), reader = made;
  }
  return {};
}

// Does the line compute its denominator from what it gave before in this step (a solver's iteration)?
bool iterates(const Scene& s, const Point& point) {
  const auto* line = top_frame(s.trace, s.trace.ops[s.culprit].stack);
  if (!point.operand.tensor || point.arg.empty() || !line) return false;
  std::vector<std::pair<record::OpId, const record::TensorUse*>> open{{s.culprit, point.operand.tensor}};
  std::set<record::OpId> seen;
  while (!open.empty() && seen.size() < 128) {
    const auto [by, at] = open.back();
    open.pop_back();
    const record::OpId made = producer(s.trace, by, *at);
    if (made == record::kNone || !seen.insert(made).second) continue;
    const record::Op& op = s.trace.ops[made];
    const auto* own = top_frame(s.trace, op.stack);
    if (op.name == s.first->name && own && own->file == line->file && own->line == line->line &&
        own->site == line->site)
      return true;
    for (const auto& in : op.inputs) open.emplace_back(made, &in);
  }
  return false;
}

// Is the denominator a number of the program (a literal, a count that Python computed), which no operation made?
// Nothing in a tensor can mend that.
bool is_number(const Scene& s, const Point& point) { return !point.arg.empty() && is_constant(s.trace, point.operand); }

constexpr const char* kOtherNumber =
    "divide by another number: the 0 is one that Python gives this line, as a constant or as a count that is 0 here "
    "(then max(n, 1))";

using Way = Advice::Way;

// What to do about it depends on what the denominator is. replaces: the first change that is tried puts another number
// in the place of the zeros, instead of a clamp.
Advice fix_for(const std::string& what, const Point& point, bool replaces, bool iterates, bool of_root) {
  if (what.find("which is all zero") != std::string::npos)
    return {
        "give the weight small random numbers instead of zeros (nn.init): of zeros there is no direction to normalise"};
  if (what.find("its own norm") != std::string::npos)
    return {
        "give that part of the weight small random numbers instead of zeros (nn.init): such a normalisation divides "
        "by the norm without an epsilon" +
        std::string(of_root ? "" : "; in one of your own, clamp the norm")};
  if (what.find("near 0 is 1") != std::string::npos)
    return {.text = "torch.expm1(x) in the place of exp(x) - 1", .way = Way::kNoEdit};
  if (what.find("norm of") != std::string::npos)
    return {of_root
                ? "F.normalize, or an epsilon under the root, (s + eps).sqrt(): one that is added after it leaves an "
                  "infinite derivative"
                : "F.normalize, or an epsilon added to the norm"};
  if (what.find("spread") != std::string::npos && point.arg.empty())
    return {"give the normalisation an epsilon (eps=1e-5): it has none that counts"};
  if (what.find("spread") != std::string::npos) return {"add an epsilon to the variance, e.g. (var + eps).sqrt()"};
  if (what.find("a mask leaves") != std::string::npos)
    return {"clamp the denominator; or, not tried here, leave at least one element unmasked", Way::kClamp};
  if (what.find("over nothing") != std::string::npos || is_integral(point.operand))
    return {
        "clamp the denominator, .clamp(min=1) for a count; or, not tried here, skip the groups for which nothing is "
        "selected",
        Way::kClamp};
  if (replaces) {
    const std::string zeros =
        point.operand.numel() <= 1 ? "a denominator that is zero" : "the zeros of the denominator";
    const std::string text = "put another number in the place of " + zeros +
                             ", torch.where(d == 0, 1, d), and choose what the quotient is there";
    return {.text = text, .way = Way::kReplace};
  }
  if (iterates)
    return {
        "leave the loop where the denominator has become zero, before this line; or clamp each denominator in it "
        "above zero"};
  return {.text = point.operand.numel() <= 1
                      ? "clamp the denominator above zero; or, not tried here, skip such a batch"
                      : "clamp the denominator above zero; or, not tried here, add an epsilon to it",
          .way = Way::kClamp,
          .is_above_zero = true};
}

// The rows of the birth are those of its output: they are reported only where the denominator has the same.
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
    if (s.backward && s.culprit == s.birth.op && s.node && is_derivative(*s.node) &&
        !one_of(plain_name(s.node->name), {"Div", "Reciprocal", "Rsqrt", "Addcdiv"}))
      return std::nullopt;
    if (!s.backward && differentiated(s.trace, s.culprit) != record::kNone) return std::nullopt;  // likewise
    const auto point = find_point(*s.first);
    if (!point || point->kind != PointKind::kDivide) return std::nullopt;
    const auto* bad = bad_output(*s.first);
    const bool zero_over_zero = bad->health.nan > 0;
    std::string text = zero_over_zero ? "0 / 0" : "division by zero";
    const bool rows = s.culprit == s.birth.op && has_rows_of_output(point->operand, *bad);
    const std::string weight =
        zero_weight(s, *point, rows || (point->arg.empty() && s.birth.rows_of == 0) ? at_rows(s.birth) : "");
    const std::string product = weight.empty() ? product_with_zero_weight(s, *point) : "";
    const std::string what = !weight.empty() ? weight : !product.empty() ? product : what_is_zero(s, *point);
    const bool iteration = weight.empty() && product.empty() && point->operand.numel() <= 1 && iterates(s, *point);
    text += what;
    const bool number = is_number(s, *point);
    if (number)
      text += ": the divisor is the number 0, which no operation computed";
    else if (!point->operand.has_inf() && weight.empty())
      text += " (the denominator holds " + zeros_of(point->operand) + (rows ? at_rows(s.birth) : "") + ")";
    if (iteration) text += "; it is computed from what this line gave before in the same step";
    text += hidden_by(s);
    const record::OpId root = root_of_zeros(s, *point);
    const bool replaces = !is_integral(point->operand) && !(zero_over_zero && point->operand.min() >= 0);
    Advice fix = number ? Advice{kOtherNumber} : fix_for(what, *point, replaces, iteration, root != record::kNone);
    if (!number && (s.birth.absorbed_by != record::kNone || s.backward))
      fix.text += "; a mask after the division does not protect the gradient";
    if (point->operand.tensor) {
      const EdgeOrigin origin = edge_origin(s.trace, s.culprit, *point->operand.tensor, point->edge);
      if (origin.kind == EdgeKind::kNumberIsEdge)
        fix.text += "; or, not tried here, " + distinct_number(s.trace, origin);
    }
    Finding result = finding(s, "division-by-zero", kScorePoint, text, fix.text);
    // What it divides by is made inside it, or comes out otherwise where it is written otherwise.
    result.fix_is_no_edit = point->arg.empty() || fix.way == Way::kNoEdit;
    result.clamps_divisor = fix.is_above_zero;
    Probe probe(s, s.culprit);
    if (!point->arg.empty()) probe.zeros_replaced(point->arg);
    probe.in_float64(false);
    probe.without_rows();
    probe.conclude(result, true);
    Edits edits(s);
    if (number)
      edits.replaced(point->arg, 0, 1).advised({}, "the divisor 0 replaced by 1");
    else if (is_integral(point->operand))
      edits.at_least(point->arg, 1).named_by_rule().replaced(point->arg, 0, 1);
    else if (counts(s, *point))
      edits.at_least(point->arg, 1).named_by_rule().above(point->arg, 0).replaced(point->arg, 0, 1);
    else if (fix.way == Way::kReplace)
      edits.replaced(point->arg, 0, 1).named_by_rule().above(point->arg, 0);
    else if (replaces)
      edits.replaced(point->arg, 0, 1).above(point->arg, 0);
    else if (fix.way == Way::kClamp)
      edits.above(point->arg, 0).named_by_rule().replaced(point->arg, 0, 1);
    else
      edits.above(point->arg, 0).replaced(point->arg, 0, 1);
    edits.into(result);
    if (root != record::kNone) Edits(s, root).above("self", 0).into(result);
    Edits(s).left_out().into(result);
    const Operand numerator = operand(*s.first, "self", 0);
    // What is near the mean of nothing is no mean: only what is computed has a limit.
    if (zero_over_zero && point->arg == "other" && point->operand.tensor && numerator.tensor && !counts(s, *point))
      result.beside = common_zeros(s, s.culprit, *numerator.tensor, *point->operand.tensor);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> division_by_zero() { return std::make_unique<DivisionByZero>(); }

}  // namespace finitude::explain
