// A product, power, sum or contraction of finite numbers beyond the range of float32 or float64.
#include "explain/edits.h"
#include "explain/probe.h"
#include "explain/range.h"
#include "explain/rules/rules.h"

namespace finitude::explain {
namespace {

class Overflow : public Rule {
 public:
  const char* name() const override { return "overflow"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    const auto excess = s.first ? find_excess(*s.first) : std::nullopt;
    if (!excess || excess->exponential || sense::is_half(excess->dtype)) return std::nullopt;
    const std::string type = dtype_name(excess->dtype);
    std::string text = s.first->name + " of finite values goes beyond " + type + " (largest operand " +
                       figure(excess->largest) + ", limit " + figure(excess->limit) + ")";
    if (excess->division)
      text = s.first->name + " by a very small number goes beyond " + type + " (largest operand " +
             figure(excess->largest) + ")";
    text += hidden_by(s);
    Finding result = finding(
        s, "overflow", kScoreRange, text,
        excess->division
            ? "keep the denominator away from zero with a clamp or an epsilon"
            : "scale or clamp the operands before this line, or compute it alone in float64, or in the log domain");
    Probe probe(s, s.culprit);
    if (excess->dtype != sense::DType::kFloat64) probe.in_float64(true);
    const std::string operand = first_factor(*s.first);
    if (!operand.empty() && !excess->division) {
      Variant smaller;
      smaller.scale_arg = operand;
      smaller.scale = 1e-20;
      probe.finite_if(smaller.scale_arg + " scaled by 1e-20", smaller);
    }
    probe.without_rows();
    probe.conclude(result, !excess->division);
    Edits edits(s);
    if (excess->dtype != sense::DType::kFloat64) edits.computed_in(sense::DType::kFloat64);
    edits.into(result);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> overflow() { return std::make_unique<Overflow>(); }

}  // namespace finitude::explain
