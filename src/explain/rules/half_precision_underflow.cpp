// A value or epsilon that half precision rounds away (to 0, or to the 1 it was meant to stay below), and that
// was then divided by, logged or differentiated at.
#include "explain/edits.h"
#include "explain/origin.h"
#include "explain/probe.h"
#include "explain/rules/rules.h"
#include "explain/singular.h"

namespace finitude::explain {
namespace {

constexpr const char* kInFloat32 = "compute in float32 from this line on (torch.autocast(enabled=False) and .float())";

// A line in an optimizer, which is given its parameters, has no precision of its own.
std::string in_float32(const record::Op& op) {
  return op.phase == record::Phase::kOptimizer ? "keep the parameters in float32, and with them the optimizer's state "
                                                 "(torch.autocast for the forward pass)"
                                               : kInFloat32;
}

// Next to 1 the format is coarser than next to 0.
std::string epsilon_for(const Point& point, sense::DType dtype) {
  const sense::DTypeInfo& format = sense::info(dtype);
  const double least = in_two_digits(point.edge == 0 ? format.min_normal : format.epsilon);
  return "use an epsilon that the format can hold (at least " + figure(least) +
         (point.edge == 0 ? "" : " next to " + figure(point.edge)) + " in " + dtype_name(dtype) + ")";
}

class HalfPrecisionUnderflow : public Rule {
 public:
  const char* name() const override { return "half-precision-underflow"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    if (!s.first || !bad_output(*s.first)) return std::nullopt;
    const auto point = find_point(*s.first);
    if (!point || !point->operand.tensor) return std::nullopt;
    const EdgeOrigin origin = edge_origin(s.trace, s.culprit, *point->operand.tensor, point->edge);
    // A zero that was a zero already, or a difference of equal numbers, is one in float32 too.
    if (origin.op == record::kNone || !origin.half || origin.kind == EdgeKind::kGiven ||
        origin.kind == EdgeKind::kCancelled)
      return std::nullopt;
    const record::Op& made = s.trace.ops[origin.op];
    const std::string type = dtype_name(result_dtype(made));
    const bool lost = origin.kind == EdgeKind::kEpsilonLost, rounds = origin.kind == EdgeKind::kNumberIsEdge;
    std::string text = lost ? "the epsilon " + figure(origin.epsilon) + " is lost to rounding in " + type
                       : rounds
                           ? rounded_number(s.trace, origin)
                           : plain_name(made.name) + " in " + type + " rounds to exactly " + figure(origin.edge) +
                                 (origin.edge == point->edge ? "" : ", from which " + figure(point->edge) + " is made");
    text += std::string(point->kind == PointKind::kLog ? ", and its log was taken" : ", and was then divided by") +
            " (" + counted(point->operand.zeros(), "zero") + " in " + point->arg + ")" +
            (s.culprit == s.birth.op ? at_rows(s.birth) : "") + hidden_by(s);
    const std::string other = lost     ? epsilon_for(*point, result_dtype(made))
                              : rounds ? distinct_number(s.trace, origin)
                                       : "log_softmax or logsigmoid on the logits";
    Finding result = finding(s, "half-precision-underflow", kScoreSetting + 30, text,
                             in_float32(*s.first) + "; or, not tried here, " + other);
    Probe probe(s, s.culprit);
    if (point->kind == PointKind::kDivide)
      probe.zeros_replaced(point->arg);
    else
      probe.clamped(point->arg, point->edge + safe_floor(point->operand.dtype()) * (point->edge == 0 ? 1 : 16));
    probe.without_rows();
    probe.in_float64(false);
    probe.conclude(result, true);
    Edits edits(s);
    edits.computed_in(sense::DType::kFloat32)
        .advised(in_float32(*s.first) + ", as it was tried with the whole step; or, not tried here, " + other);
    if (point->kind == PointKind::kDivide && s.culprit != s.birth.op) edits.replaced(point->arg, 0, 1);
    edits.into(result);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> half_precision_underflow() { return std::make_unique<HalfPrecisionUnderflow>(); }

}  // namespace finitude::explain
