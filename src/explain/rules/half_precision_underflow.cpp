// A value or epsilon that half precision rounds away (to 0, or to the 1 it was meant to stay below), and that
// was then divided by, logged or differentiated at.
#include "explain/edits.h"
#include "explain/origin.h"
#include "explain/probe.h"
#include "explain/rules/rules.h"
#include "explain/singular.h"

namespace finitude::explain {
namespace {

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
    const bool lost = origin.kind == EdgeKind::kEpsilonLost;
    std::string text =
        lost ? "the epsilon " + figure(origin.epsilon) + " is lost to rounding in " + type
             : plain_name(made.name) + " in " + type + " rounds to exactly " + figure(point->edge == 0 ? 0 : 1);
    text += std::string(point->kind == PointKind::kLog ? ", and its log was taken" : ", and was then divided by") +
            " (" + counted(point->operand.zeros(), "zero") + " in " + point->arg + ")" +
            (s.culprit == s.birth.op ? at_rows(s.birth) : "") + hidden_by(s);
    Finding result =
        finding(s, "half-precision-underflow", kScoreSetting + 30, text,
                lost ? "an epsilon that the format can hold (at least 1e-4 in float16), or these lines in float32"
                     : "compute from there in float32 (.float()), or with log_softmax / logsigmoid on the logits");
    Probe probe(s, s.culprit);
    if (point->kind == PointKind::kDivide)
      probe.zeros_replaced(point->arg);
    else
      probe.clamped(point->arg, point->edge + safe_floor(point->operand.dtype()) * (point->edge == 0 ? 1 : 16));
    probe.without_rows();
    probe.in_float64(false);
    probe.conclude(result, true);
    Edits edits(s);
    edits.computed_in(sense::DType::kFloat32);
    if (point->kind == PointKind::kDivide && s.culprit != s.birth.op) edits.replaced(point->arg, 0, 1);
    edits.into(result);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> half_precision_underflow() { return std::make_unique<HalfPrecisionUnderflow>(); }

}  // namespace finitude::explain
