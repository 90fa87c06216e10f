#include "signal/horizon.h"

#include <algorithm>
#include <cmath>

namespace finitude::signal {
namespace {

constexpr double kMostSteps = 100'000;

}  // namespace

std::optional<std::array<std::uint64_t, 2>> horizon_of(double log_value, const Rates& rates, double limit) noexcept {
  const double log_limit = std::log(limit);
  const double low = (log_limit / 2 - log_value) / rates.fastest;
  const double high = rates.slowest > 0 ? (log_limit - log_value) / rates.slowest : kMostSteps;
  if (low > kMostSteps) return std::nullopt;
  const auto steps = [](double value) {
    return static_cast<std::uint64_t>(std::clamp(std::ceil(value), 1.0, kMostSteps));
  };
  return {{steps(low), steps(high)}};
}

}  // namespace finitude::signal
