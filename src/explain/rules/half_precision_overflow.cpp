// A product, sum, exponential or cast beyond the range of a half-precision format (65504 in float16), also of
// a mask constant that becomes -Inf there.
#include <algorithm>

#include "explain/edits.h"
#include "explain/origin.h"
#include "explain/probe.h"
#include "explain/range.h"
#include "explain/rules/rules.h"

namespace finitude::explain {
namespace {

// Made from numbers of the program (torch.tensor(...)): the trace names such an argument "data".
bool from_literal(const record::Op& op) {
  return std::any_of(op.scalars.begin(), op.scalars.end(), [](const auto& scalar) { return scalar.arg == "data"; });
}

// A number in the program that is infinite only because of the format, times a zero: (1 - mask) * -1e10 in
// float16.
std::optional<Finding> infinite_constant(const Scene& s) {
  if (!s.op || s.culprit != s.birth.op || !one_of(plain_name(s.op->name), {"mul", "multiply"})) return std::nullopt;
  const auto* bad = bad_output(*s.op);
  if (!bad || bad->health.nan == 0 || !sense::is_half(bad->dtype)) return std::nullopt;
  for (const auto& use : s.op->inputs) {
    if (use.health.inf() == 0 || use.health.nan > 0 || use.health.numel != 1 || !sense::is_half(use.dtype)) continue;
    const BadOrigin origin = bad_origin(s.trace, s.birth.op, use);
    // A literal has lost what it was before the format; where a call asked for Inf, the format is not to
    // blame.
    const bool literal = origin.op == record::kNone || from_literal(s.trace.ops[origin.op]);
    if (!literal || !origin.intended) continue;
    Finding result =
        finding(s, "half-precision-overflow", kScoreInfinities + 50,
                "a constant of the program is infinite in " + dtype_name(use.dtype) + ", and zero times it is NaN",
                "masked_fill with torch.finfo(dtype).min instead of adding a product with a large constant");
    conclude(result, false);
    result.fix_is_no_edit = true;
    Edits(s).bounded(use.arg).into(result);
    return result;
  }
  return std::nullopt;
}

class HalfPrecisionOverflow : public Rule {
 public:
  const char* name() const override { return "half-precision-overflow"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    const auto excess = s.first ? find_excess(*s.first) : std::nullopt;
    if (!excess || !sense::is_half(excess->dtype)) return infinite_constant(s);
    const std::string type = dtype_name(excess->dtype);
    const bool cast = is_carrier(*s.first);
    std::string text =
        cast ? "a cast of " + (excess->integers ? "integers" : figure(excess->largest)) + " to " + type + " overflows"
             : s.first->name + " in " + type + " overflows (largest operand " + figure(excess->largest) + ")";
    text += ": the format ends at " + figure(excess->limit) + (s.culprit == s.birth.op ? at_rows(s.birth) : "") +
            hidden_by(s);
    const sense::Health& made = s.first->outputs.front().health;
    const bool constant = made.numel == 1, mask = constant && made.neg_inf == 1;  // -1e9, say
    Finding result = finding(
        s, "half-precision-overflow", kScoreSetting + 25, text,
        mask ? "masked_fill with torch.finfo(dtype).min instead of a constant that the format cannot hold"
             : std::string(
                   "compute this line in float32 (torch.autocast(enabled=False) and .float()); or, not tried here, ") +
                   (excess->dtype == sense::DType::kBFloat16 ? "" : "use bfloat16, or ") + "scale the operands down");
    Probe probe(s, s.culprit);
    if (!cast && !s.first->inputs.empty()) {
      Variant single;
      single.compute_dtype = sense::DType::kFloat32;
      probe.finite_if(plain_name(s.first->name) + " in float32", single);
    }
    const std::string operand = first_read(*s.first);
    if (!excess->division && !operand.empty() && excess->largest > 0 && !excess->integers) {
      Variant smaller;
      smaller.scale_arg = first_factor(*s.first);
      smaller.scale = 1.0 / 65536;
      probe.finite_if(smaller.scale_arg + " scaled by 1/65536", smaller);
    }
    probe.without_rows();
    probe.conclude(result, true);
    Edits edits(s);
    if (!cast || !constant) {
      edits.computed_in(sense::DType::kFloat32)
          .advised(
              "compute in float32 from this line on (torch.autocast(enabled=False) and .float()), as it was tried with "
              "the whole step");
    }
    if (cast) {
      edits.between(operand, -excess->limit, excess->limit);
      if (mask)
        edits.named_by_rule();
      else
        edits.advised("clamp what is cast here to the range of " + type + " before the cast");
    }
    edits.into(result);
    if (!constant && !cast && !result.experiments.empty() && !result.experiments.front().confirms)
      result.fix_text = "bound the operands (clamp, or subtract the maximum): float32 does not hold the result either";
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> half_precision_overflow() { return std::make_unique<HalfPrecisionOverflow>(); }

}  // namespace finitude::explain
