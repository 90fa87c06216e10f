#include "signal/onset.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace finitude::signal {
namespace {

constexpr std::size_t kLookedBack = 4096;  // steps, which is what the ring of steps holds
constexpr std::size_t kLeastSteps = 3;     // of growth, else it is a jump
constexpr double kLeastGrowth = 10;
constexpr double kLeastFit = 0.6;  // of the variance of the logarithms
constexpr double kOneStep = 0.8;   // of the growth: more in a single step is a jump
constexpr double kMostRise = 700;  // its exponential is still finite

}  // namespace

// With T(b) the sum of y[t] (t - b) over t > b, the line's rise is (T - H1 mean) / (H2 - H1^2 / n), where H1 and H2 are
// the sums of (t - b) and of its square. T is carried from one onset to the one before.
std::optional<Hinge> fit_hinge(std::span<const double> values, std::size_t least) noexcept {
  const std::size_t n = values.size();
  if (n < least + 1) return std::nullopt;
  double mean = 0;
  for (const double y : values) mean += y;
  mean /= static_cast<double>(n);
  double total = 0;
  for (const double y : values) total += (y - mean) * (y - mean);
  if (!(total > 0)) return std::nullopt;
  std::optional<Hinge> best;
  double tail = 0, weighted = 0;
  for (std::size_t b = n - 1; b-- > 0;) {
    tail += values[b + 1];
    weighted += tail;
    const double m = static_cast<double>(n - 1 - b);
    if (n - 1 - b < least) continue;
    const double h1 = m * (m + 1) / 2, h2 = m * (m + 1) * (2 * m + 1) / 6;
    const double covariance = weighted - h1 * mean, spread = h2 - h1 * h1 / static_cast<double>(n);
    const double rise = covariance / spread, explained = rise * covariance / total;
    if (!best || explained > best->explained + 1e-12)
      best = Hinge{b, mean - rise * h1 / static_cast<double>(n), rise, explained};
  }
  return best;
}

std::optional<Growth> growth_to_end(std::span<const double> values) {
  std::size_t first = values.size();
  const std::size_t oldest = values.size() - std::min(values.size(), kLookedBack);
  while (first > oldest && std::isfinite(values[first - 1]) && values[first - 1] != 0) --first;
  std::vector<double> logs;
  logs.reserve(values.size() - first);
  for (const double value : values.subspan(first)) logs.push_back(std::log(std::fabs(value)));

  const std::optional<Hinge> fit = fit_hinge(logs, kLeastSteps);
  if (!fit || fit->rise <= 0 || fit->explained < kLeastFit) return std::nullopt;
  const double needed = std::log(kLeastGrowth), last = logs.back();
  if (fit->rise * static_cast<double>(logs.size() - 1 - fit->at) < needed || last - fit->level < needed)
    return std::nullopt;
  if (last < *std::ranges::max_element(logs) - needed) return std::nullopt;
  for (std::size_t i = fit->at; i + 1 < logs.size(); ++i) {
    if (logs[i + 1] - logs[i] > kOneStep * (last - fit->level)) return std::nullopt;
  }
  return Growth{first + fit->at, std::exp(std::min(fit->rise, kMostRise)),
                first == 0 && fit->at < std::max<std::size_t>(1, logs.size() / 100)};
}

}  // namespace finitude::signal
