// A collective that hands back a non-finite value although this rank gave finite ones: another rank's value,
// or a sum over ranks beyond the format.
#include <algorithm>

#include "explain/probe.h"
#include "explain/rules/rules.h"
#include "record/exchange.h"

namespace finitude::explain {
namespace {

bool is_collective(const record::Op& op) {
  if (!record::exchanges_values(op.name)) return false;
  for (const char* word : {"reduce", "gather", "broadcast", "recv", "alltoall", "all_to_all", "scatter", "wait"})
    if (op.name.find(word) != std::string::npos) return true;
  return false;
}

// Not the memory that the operation fills: what it held before has no part in it.
bool is_given(const record::TensorUse& use) { return !use.arg.starts_with("output"); }

class Collective : public Rule {
 public:
  const char* name() const override { return "collective"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    if (!s.op || !is_collective(*s.op)) return std::nullopt;
    const auto& inputs = s.op->inputs;
    if (std::ranges::any_of(inputs, [](const auto& use) { return is_given(use) && !use.health.ok(); }))
      return std::nullopt;
    const auto* bad = bad_output(*s.op);
    if (!bad) return std::nullopt;
    double largest = 0;
    for (const auto& use : inputs)
      if (is_given(use)) largest = std::max(largest, use.health.absmax);
    const double limit = sense::info(bad->dtype).max_finite;
    // A sum of like values overflows only from values that are near the limit; NaN never comes of finite
    // ones.
    const bool sums = s.op->name.find("reduce") != std::string::npos;
    const bool overflow = sums && bad->health.nan == 0 && largest > limit / 4096;
    Finding result = overflow ? finding(s, "collective-overflow", kScoreOneMeaning,
                                        "the sum over ranks leaves " + dtype_name(bad->dtype) + ": this rank gave " +
                                            figure(largest) + ", the limit is " + figure(limit),
                                        "average before the sum, or reduce in float32")
                              : finding(s, "other-rank", kScoreOneMeaning,
                                        "this rank gave finite values to " + s.op->name + " and got " +
                                            (bad->health.nan ? "NaN" : "Inf") + " back: another rank was first",
                                        "see the birth on the rank that was first");
    conclude(result, bad->health.nan > 0 || overflow);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> collective() { return std::make_unique<Collective>(); }

}  // namespace finitude::explain
