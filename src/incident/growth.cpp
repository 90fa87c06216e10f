#include "incident/growth.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace finitude::incident {
namespace {

constexpr double kGrown = 100.0;        // times as large as at the start
constexpr double kAboveAll = 10.0;      // times the largest weight at the start: one that began tiny may grow far
constexpr double kGrownByRate = 2.0;    // as kGrown, where the cause is that the updates are too large
constexpr double kNearLimitBits = 8.0;  // below the largest number of the dtype
constexpr double kNearLimitFloat16Bits = 2.0;  // the same, where the whole range above 1 is 16 bits
constexpr double kNoWeight = 1e6;              // is that large in a run that is well: its square is 1e12

std::string figure(double value, int digits = 3) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*g", digits, value);
  return text;
}

}  // namespace

Growth growth_of(const std::vector<Weight>& weights, double most_at_start, bool by_rate) {
  const double least = by_rate ? kGrownByRate : kGrown, above_all = by_rate ? 1.0 : kAboveAll;
  Growth growth;
  const Weight* worst = nullptr;
  double worst_factor = 0;
  for (const Weight& weight : weights) {
    if (!(weight.start.value_or(0) > 0) || !weight.now || weight.is_all_bad) continue;
    const double factor = *weight.now / *weight.start;
    growth.factor = std::max(growth.factor.value_or(factor), factor);
    if (factor < least || *weight.now < above_all * most_at_start || factor <= worst_factor) continue;
    worst = &weight;
    worst_factor = factor;
  }
  if (worst != nullptr)
    growth.text = "grown " + figure(worst_factor) + "-fold since step 0 (" + worst->name + ": " +
                  figure(*worst->start) + " to " + figure(*worst->now) + ")";
  return growth;
}

std::string extremes_of(const std::vector<Weight>& weights) {
  std::string nearest, subnormal;
  double bits = std::numeric_limits<double>::infinity();
  for (const Weight& weight : weights) {
    const double largest = weight.now.value_or(0);
    const sense::DTypeInfo& format = sense::info(weight.dtype);
    if (!(largest > 0) || format.size_bytes < 2) continue;
    const double left = std::log2(format.max_finite / largest);
    const bool is_float16 = weight.dtype == sense::DType::kFloat16;
    if (left < std::min(bits, is_float16 ? kNearLimitFloat16Bits : kNearLimitBits)) {
      bits = left;
      nearest = weight.name + " reaches " + figure(largest) + ", " + figure(std::max(bits, 0.0), 2) +
                " bits below the limit of " + std::string(format.name);
    } else if (largest < format.min_normal && subnormal.empty()) {
      subnormal = weight.name + " is subnormal in " + std::string(format.name) + ", " + figure(largest) + " at most";
    }
  }
  return nearest.empty() ? subnormal : nearest;
}

std::string beyond_use(const std::vector<Weight>& weights) {
  const auto largest = std::ranges::max_element(weights, {}, [](const Weight& w) { return w.now.value_or(0); });
  if (largest == weights.end() || !(largest->now.value_or(0) >= kNoWeight)) return {};
  return largest->name + " reaches " + figure(*largest->now);
}

}  // namespace finitude::incident
