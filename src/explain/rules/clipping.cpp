// A gradient norm that overflows though every gradient is finite, and is then used to clip or skip.
#include <algorithm>

#include "explain/edits.h"
#include "explain/origin.h"
#include "explain/probe.h"
#include "explain/range.h"
#include "explain/rules/rules.h"

namespace finitude::explain {
namespace {

bool measures(const std::string& name) {
  return one_of(name, {"norm", "linalg_vector_norm", "linalg_norm", "dot", "vdot", "sum", "pow", "square", "stack"});
}

// A finished gradient: a leaf's .grad, or made in backward and outside any graph. A gradient that is itself
// differentiated (a gradient penalty) is part of the model.
bool is_gradient(const Scene& s, const record::TensorUse& use) {
  if (use.storage < s.trace.storages.size() && s.trace.storages[use.storage].origin == record::Origin::kGradient)
    return true;
  const auto sink = std::find_if(s.trace.sinks.begin(), s.trace.sinks.end(), [&](const record::Sink& known) {
    return known.kind == "gradient" && known.value.storage == use.storage && use.storage != record::kNone;
  });
  if (sink != s.trace.sinks.end()) return true;
  const record::OpId made = producer(s.trace, s.culprit, use);
  return made != record::kNone && s.trace.ops[made].phase == record::Phase::kBackward && !use.requires_grad;
}

// The norm of norms is one step further away: look through what measures.
bool of_gradients(const Scene& s) {
  for (const auto& use : s.first->inputs) {
    if (is_gradient(s, use)) return true;
    const record::OpId made = producer(s.trace, s.culprit, use);
    if (made == record::kNone || !measures(plain_name(s.trace.ops[made].name))) continue;
    for (const auto& inner : s.trace.ops[made].inputs)
      if (is_gradient(s, inner)) return true;
  }
  return false;
}

class Clipping : public Rule {
 public:
  const char* name() const override { return "clipping"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    if (!s.first || s.backward || s.first->phase == record::Phase::kBackward) return std::nullopt;
    if (!measures(plain_name(s.first->name)) || !of_gradients(s)) return std::nullopt;
    const auto excess = find_excess(*s.first);
    if (!excess) return std::nullopt;
    Finding result =
        finding(s, "clipping", kScoreSetting + 20,
                "the norm of finite gradients overflows " + dtype_name(excess->dtype) + " (largest gradient " +
                    figure(excess->largest) + "), and what is clipped by it is lost",
                "skip the step when the norm is not finite (error_if_nonfinite=True), choose with "
                "torch.where instead of a product, or take the norm in float64");
    Probe probe(s, s.culprit);
    probe.in_float64(true);
    if (!s.first->inputs[0].arg.empty()) {
      Variant smaller;
      smaller.scale_arg = s.first->inputs[0].arg;
      smaller.scale = 1 / std::max(excess->largest, 1.0);
      probe.finite_if("gradients scaled by their largest value", smaller);
    }
    probe.conclude(result, true);
    Edits(s, s.culprit).computed_in(sense::DType::kFloat64).into(result);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> clipping() { return std::make_unique<Clipping>(); }

}  // namespace finitude::explain
