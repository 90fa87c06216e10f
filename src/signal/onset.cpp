#include "signal/onset.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace finitude::signal {
namespace {

constexpr std::size_t kLookedBack = 4096;  // steps, which is what the ring of steps holds
constexpr std::size_t kLeastSteps = 3;     // of growth, else it is a jump
constexpr double kLeastGrowth = 10;
constexpr double kLeastFit = 0.6;      // of the variance of the logarithms
constexpr double kLikeTheLine = 0.5;   // of its rise per step
constexpr double kOneStep = 0.8;       // of the growth: more in a single step is a jump
constexpr double kMostRise = 700;      // its exponential is still finite
constexpr double kSpikeDistance = 10;  // times the median distance of a value from the median around it

double middle(double a, double b, double c) noexcept { return std::max(std::min(a, b), std::min(std::max(a, b), c)); }

double middle(std::span<const double> values, std::size_t i) noexcept {
  std::array<double, 5> five;
  std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(i - 2), five.size(), five.begin());
  std::ranges::nth_element(five, five.begin() + 2);
  return five[2];
}

// The running median of five, of three next to an end, and at an end what Tukey's rule takes: the middle one of the
// value and of where a line through the two medians behind it leads. All of them leave a monotone series as it is.
double around(std::span<const double> y, std::size_t i) noexcept {
  const std::size_t n = y.size();
  if (i >= 2 && i + 2 < n) return middle(y, i);
  if (i == 1 || i == n - 2) return middle(y[i - 1], y[i], y[i + 1]);
  const std::size_t second = i == 0 ? 1 : n - 2, third = i == 0 ? 2 : n - 3;
  const double near = middle(y[second - 1], y[second], y[second + 1]);
  return middle(y[i], near, 3 * near - 2 * middle(y, third));
}

}  // namespace

void remove_spikes(std::span<double> values, std::span<double> room) noexcept {
  const std::size_t n = values.size();
  if (n < 5) return;
  for (std::size_t i = 0; i < n; ++i) room[i] = std::fabs(values[i] - around(values, i));
  std::ranges::nth_element(room, room.begin() + static_cast<std::ptrdiff_t>(n / 2));
  const double most = kSpikeDistance * room[n / 2];
  for (std::size_t i = 0; i < n; ++i) {
    const double usual = around(values, i);
    room[i] = std::fabs(values[i] - usual) > most ? usual : values[i];
  }
  std::ranges::copy(room, values.begin());
}

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

double largest_step(std::span<const double> values) noexcept {
  double largest = 0;
  for (std::size_t i = 0; i + 1 < values.size(); ++i) largest = std::max(largest, values[i + 1] - values[i]);
  return largest;
}

std::optional<Growth> growth_to_end(std::span<const double> values) {
  std::size_t first = values.size();
  const std::size_t oldest = values.size() - std::min(values.size(), kLookedBack);
  while (first > oldest && std::isfinite(values[first - 1]) && values[first - 1] != 0) --first;
  std::vector<double> logs;
  logs.reserve(values.size() - first);
  for (const double value : values.subspan(first)) logs.push_back(std::log(std::fabs(value)));

  std::vector<double> room(logs.size());
  remove_spikes(logs, room);
  const std::optional<Hinge> fit = fit_hinge(logs, kLeastSteps);
  if (!fit || fit->rise <= 0 || fit->explained < kLeastFit) return std::nullopt;
  const double needed = std::log(kLeastGrowth), last = logs.back();
  if (fit->rise * static_cast<double>(logs.size() - 1 - fit->at) < needed || last - fit->level < needed)
    return std::nullopt;
  if (last < *std::ranges::max_element(logs) - needed) return std::nullopt;
  if (largest_step(std::span(logs).subspan(fit->at)) > kOneStep * (last - fit->level)) return std::nullopt;
  // Of a growth that speeds up a line begins too late: a step before it that rises like it belongs to it.
  std::size_t at = fit->at;
  while (at > 0 && logs[at] - logs[at - 1] > kLikeTheLine * fit->rise) --at;
  return Growth{first + at, std::exp(logs[at]), std::exp(std::min(fit->rise, kMostRise)),
                first == 0 && at < std::max<std::size_t>(1, logs.size() / 100)};
}

}  // namespace finitude::signal
