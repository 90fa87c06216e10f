// An unbiased variance or standard deviation of one element, and n / (n - 1) with n = 1.
#include <algorithm>
#include <cmath>

#include "explain/edits.h"
#include "explain/origin.h"
#include "explain/probe.h"
#include "explain/rules/rules.h"
#include "explain/singular.h"

namespace finitude::explain {
namespace {

double correction_of(const record::Op& op) {
  for (const auto& scalar : op.scalars) {
    if (scalar.arg == "correction" && scalar.number) return *scalar.number;
    if (scalar.arg == "unbiased") return scalar.text == "False" || scalar.number.value_or(1) == 0 ? 0 : 1;
  }
  return 1;
}

// The denominator is n - 1, with n = 1, where n is a count that no gradient flows through.
bool divides_by_n_minus_1(const Scene& s) {
  const auto point = find_point(*s.first);
  if (!point || point->kind != PointKind::kDivide || !point->operand.tensor || point->operand.numel() > 1) return false;
  const record::OpId made = producer(s.trace, s.culprit, *point->operand.tensor);
  if (made == record::kNone || plain_name(s.trace.ops[made].name) != "sub") return false;
  const record::Op& sub = s.trace.ops[made];
  const Operand n = operand(sub, "self", 0);
  if (!n.tensor || n.tensor->requires_grad || n.numel() > 1 || !is_constant(s.trace, operand(sub, "other", 1)))
    return false;
  if (n.numel() == 1) return n.max() == 1;
  // An integer count: nothing shows its value, so it has to be the numerator as well.
  const Operand numerator = operand(*s.first, "self", 0);
  return numerator.tensor && numerator.tensor->storage == n.tensor->storage;
}

// Other ways, where they apply: a loader that gave a batch of one can drop it.
std::string or_skip(const Scene& s, const record::TensorUse* x) {
  const auto of_loader = [](const record::Storage& storage) { return storage.origin == record::Origin::kBatch; };
  const bool batch_of_one = !x || x->shape.empty() || x->shape[0] == 1;
  const bool loaded = std::ranges::any_of(s.trace.storages, of_loader) || !s.evidence.history.samples.empty();
  if (loaded && batch_of_one) return "; or, not tried here, drop the last incomplete batch (drop_last=True) or skip it";
  return "; or, not tried here, skip it where there is one element only";
}

class VarianceOfOne : public Rule {
 public:
  const char* name() const override { return "variance-of-one"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    const auto* bad = s.first ? bad_output(*s.first) : nullptr;
    if (!bad) return std::nullopt;
    if (divides_by_n_minus_1(s)) {
      Finding result =
          finding(s, "variance-of-one", kScoreOneMeaning, "n / (n - 1) with n = 1: an unbiased variance of one element",
                  "divide by max(n - 1, 1)" + or_skip(s, nullptr));
      conclude(result, true);
      Edits(s, s.culprit).replaced("other", 0, 1).advised({}, "n - 1 = 0 replaced by 1").into(result);
      return result;
    }
    const std::string op = plain_name(s.first->name);
    if (!one_of(op, {"std", "var", "std_mean", "var_mean"}) || s.first->inputs.empty()) return std::nullopt;
    const auto& x = s.first->inputs.front();
    if (!x.health.ok() || x.health.numel == 0 || bad->health.nan == 0 || bad->health.numel == 0) return std::nullopt;
    const double elements = double(x.health.numel) / double(bad->health.numel);
    const double correction = correction_of(*s.first);
    if (elements > correction) return std::nullopt;
    Finding result = finding(
        s, "variance-of-one", kScoreOneMeaning,
        op + " of " + counted(static_cast<std::uint64_t>(elements), "element") + " with n - " + figure(correction) +
            " = " + figure(elements - correction) + " in the denominator" + hidden_by(s),
        (correction > 0 ? std::string("use the biased form (correction=0)") : std::string("skip what is empty")) +
            or_skip(s, &x));
    Probe probe(s, s.culprit);
    probe.in_float64(false);
    probe.again();
    probe.conclude(result, true);
    Edits edits(s, s.culprit);
    // Of one element the biased form is 0, and so is its derivative: the very same as 0 in the place of what has no
    // value.
    if (elements == 1 && correction > 0)
      edits.left_out(0).advised({}, "correction=0, which gives 0 for one element, and no gradient");
    else
      edits.left_out(0);
    edits.left_out(1);
    // Verified only where 0 was not: what is divided by it, say. The biased form is no fix then.
    if (elements == 1 && correction > 0)
      edits.advised(
          "use 1 in its place where there is one element (torch.where); correction=0 gives 0 there, and the "
          "step is not finite with that" +
          or_skip(s, &x));
    edits.into(result);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> variance_of_one() { return std::make_unique<VarianceOfOne>(); }

}  // namespace finitude::explain
