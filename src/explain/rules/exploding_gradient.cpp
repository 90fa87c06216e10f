// A gradient that grew over many backward ops until it left the range, while every forward value is finite.
#include <algorithm>

#include "explain/origin.h"
#include "explain/probe.h"
#include "explain/range.h"
#include "explain/rules/rules.h"

namespace finitude::explain {
namespace {

constexpr int kEnoughOps = 8;  // fewer are one bad factor, not growth
constexpr double kEnoughGrowth = 1e6;
constexpr int kMaxOps = 4096;

struct Growth {
  int ops = 0;
  double from = 0, to = 0;
};

// Back along the largest finite gradient, from the op that overflowed towards the loss.
Growth growth_before(const Scene& s) {
  Growth growth;
  record::OpId reader = s.birth.op;
  for (int step = 0; step < kMaxOps; ++step) {
    const record::TensorUse* largest = nullptr;
    record::OpId largest_by = record::kNone;
    for (const auto& use : s.trace.ops[reader].inputs) {
      const record::OpId made = producer(s.trace, reader, use);
      if (made == record::kNone || s.trace.ops[made].phase != record::Phase::kBackward) continue;
      if (!largest || use.health.absmax > largest->health.absmax) largest = &use, largest_by = made;
    }
    if (!largest) break;
    const double size = largest->health.absmax;
    if (growth.ops == 0) growth.from = growth.to = size;
    if (size > 0) growth.from = std::min(growth.from, size);
    if (!is_carrier(s.trace.ops[largest_by])) ++growth.ops;
    reader = largest_by;
  }
  return growth;
}

class ExplodingGradient : public Rule {
 public:
  const char* name() const override { return "exploding-gradient"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    if (!s.op || !s.backward || s.culprit != s.birth.op || s.forward_bad()) return std::nullopt;
    const auto excess = find_excess(*s.op);
    if (!excess || sense::is_half(excess->dtype) || excess->division) return std::nullopt;
    const Growth growth = growth_before(s);
    if (growth.ops < kEnoughOps || !(growth.to > growth.from * kEnoughGrowth)) return std::nullopt;
    Finding result = finding(s, "exploding-gradient", kScoreRange + 40,
                             "the gradient grew from " + figure(growth.from) + " to " + figure(growth.to) + " over " +
                                 counted(growth.ops, "backward op") + " and left " + dtype_name(excess->dtype) +
                                 " in " + s.op->name + ", while the forward values are finite",
                             "shorter backpropagation through time, gated or orthogonally initialised recurrence, or "
                             "normalisation; clipping acts too late here");
    Probe probe(s, s.birth.op);
    if (excess->dtype != sense::DType::kFloat64) probe.in_float64(true);
    probe.conclude(result, true);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> exploding_gradient() { return std::make_unique<ExplodingGradient>(); }

}  // namespace finitude::explain
