#include "signal/horizon.h"

#include <algorithm>
#include <cmath>

#include "signal/trend.h"

namespace finitude::signal {
namespace {

constexpr double kMostSteps = 100'000;
constexpr double kMostRatio = 10;       // of the latest to the earliest
constexpr std::size_t kMostParts = 9;   // of a rise
constexpr std::size_t kPartValues = 4;  // at least, where there are enough for three parts
constexpr double kOfMad = 1.4826;       // times the median deviation is the standard deviation of normal scatter
constexpr double kLeastError = 0.05;    // of the rate

}  // namespace

std::optional<Rates> rates_of(std::span<const double> values) noexcept {
  if (values.size() < 4) return std::nullopt;
  const std::size_t parts = std::clamp<std::size_t>(values.size() / kPartValues, 4, kMostParts);
  const std::size_t each = values.size() / parts, first = values.size() - parts * each;
  std::array<double, kMostParts> rates, deviations;
  double before = median(values.subspan(first, each));
  for (std::size_t k = 1; k < parts; ++k) {
    const double now = median(values.subspan(first + k * each, each));
    rates[k - 1] = (now - before) / static_cast<double>(each);
    before = now;
  }
  const std::size_t count = parts - 1;
  const double likely = median({rates.data(), count}), last = rates[count - 1];
  if (!(likely > 0)) return std::nullopt;
  for (std::size_t k = 0; k < count; ++k) deviations[k] = std::fabs(rates[k] - likely);
  const double scatter = kOfMad * median({deviations.data(), count});
  const double error = 2 * scatter / std::sqrt(static_cast<double>(count)) + kLeastError * likely;
  return Rates{std::min(likely - error, last), likely, std::max(likely + error, last)};
}

std::optional<std::array<std::uint64_t, 2>> horizon_between(double least, double most, const Rates& rates) noexcept {
  const double low = std::max(1.0, std::ceil(least / rates.fastest));
  if (!(rates.slowest > 0) || low > kMostSteps) return std::nullopt;
  const double high = std::max(1.0, std::ceil(most / rates.slowest));
  if (high > kMostRatio * low) return std::nullopt;
  return {{static_cast<std::uint64_t>(low), static_cast<std::uint64_t>(std::min(high, kMostSteps))}};
}

std::optional<std::array<std::uint64_t, 2>> horizon_of(double log_value, const Rates& rates, double limit) noexcept {
  const double log_limit = std::log(limit);
  return horizon_between(log_limit / 2 - log_value, log_limit - log_value, rates);
}

}  // namespace finitude::signal
