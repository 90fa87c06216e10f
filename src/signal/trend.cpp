#include "signal/trend.h"

#include <algorithm>
#include <cmath>

#include "signal/onset.h"

namespace finitude::signal {
namespace {

constexpr std::size_t kLeastValues = 12;  // of a level, before a line is fitted
constexpr std::size_t kLeastRising = 6;   // of these, on the line
constexpr double kLeastLineFit = 0.7;     // of the variance
constexpr double kAboveNoise = 6;         // times the scatter of one value to the next
constexpr double kStillRising = 0.4;      // of the fitted rise, over the last quarter of it

std::uint64_t steps_of(std::size_t level) noexcept {
  std::uint64_t steps = 1;
  for (std::size_t k = 0; k < level; ++k) steps *= kBlock;
  return steps;
}

double mean(std::span<const double> values) noexcept {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// The standard deviation of one value about the course of its neighbours, from the median of the second differences:
// neither a line nor a single outlier moves it. The factor is that of normal scatter, 0.6745 sqrt(6).
double scatter(std::span<const double> values) noexcept {
  if (values.size() < 3) return 0;
  std::array<double, kKept> bends;
  for (std::size_t i = 0; i + 2 < values.size(); ++i)
    bends[i] = std::fabs(values[i] - 2 * values[i + 1] + values[i + 2]);
  return median({bends.data(), values.size() - 2}) / 1.652;
}

// Whether the last two values are above all others, by `least` above the lowest: in noise one step of many thousands
// is. In nearly every step one of the values just before them says that they are not.
bool is_at_new_height(const Window& window, double least) noexcept {
  const std::size_t n = window.size();
  if (n < kLeastValues) return false;
  const double last = std::min(window[n - 1], window[n - 2]);
  for (std::size_t i = n - 2; i-- > 0;) {
    if (window[i] > last) return false;
    if (i + kLeastValues == n && last - window.lowest() < least) return false;
  }
  return true;
}

}  // namespace

double median(std::span<const double> values) noexcept {
  if (values.empty()) return 0;
  std::array<double, kKept> sorted;
  const std::size_t n = std::min(values.size(), kKept);
  std::copy_n(values.end() - static_cast<std::ptrdiff_t>(n), n, sorted.begin());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(n / 2);
  std::nth_element(sorted.begin(), middle, sorted.begin() + static_cast<std::ptrdiff_t>(n));
  return *middle;
}

void Window::push(double value) noexcept {
  if (size_ < kKept) {
    values_[(begin_ + size_++) % kKept] = value;
    return;
  }
  values_[begin_] = value;
  begin_ = (begin_ + 1) % kKept;
}

// In the order of memory, which is no order of time: nothing is copied.
double Window::lowest() const noexcept {
  double lowest = values_[0];
  for (std::size_t i = 1; i < size_; ++i) lowest = values_[i] < lowest ? values_[i] : lowest;
  return lowest;
}

std::span<const double> Window::copy(std::array<double, kKept>& into) const noexcept {
  for (std::size_t i = 0; i < size_; ++i) into[i] = (*this)[i];
  return {into.data(), size_};
}

void Trend::push(double value) noexcept {
  ++pushed_;
  levels_[0].push(value);
  std::uint64_t steps = 1;
  for (std::size_t k = 0; k + 1 < kLevels; ++k) {
    steps *= kBlock;
    if (pushed_ % steps != 0) return;
    std::array<double, kBlock> block;
    const Window& finer = levels_[k];
    for (std::size_t i = 0; i < kBlock; ++i) block[i] = finer[finer.size() - kBlock + i];
    levels_[k + 1].push(median(block));
  }
}

double Trend::before(std::uint64_t steps) const noexcept {
  for (std::size_t k = 0; k < kLevels; ++k) {
    const std::uint64_t back = steps / steps_of(k);
    if (back < levels_[k].size()) return levels_[k][levels_[k].size() - 1 - back];
  }
  for (std::size_t k = kLevels; k-- > 0;) {
    if (levels_[k].size() != 0) return levels_[k][0];
  }
  return 0;
}

std::optional<Rise> Trend::rise(double least, bool all) const noexcept {
  std::array<double, kKept> room;
  for (std::size_t k = 0; k < kLevels; ++k) {
    const std::uint64_t each = steps_of(k);
    const Window& window = levels_[k];
    if (!all && pushed_ % (k == 0 ? kBlock / 2 : each) != 0 && !(k == 0 && is_at_new_height(window, least))) break;
    if (window.size() < kLeastValues) break;
    const double last = window.last();
    // What follows costs as much as the rest of a step's record: nearly every level is ruled out here. Of noise alone
    // the last value is as often low as high, so it counts with the one before.
    if (std::min(last, window[window.size() - 2]) - window.lowest() < least) continue;
    const double noise = scatter(window.copy(room));
    const std::span<double> y(room.data(), window.size());
    std::array<double, kKept> spare;
    remove_spikes(y, std::span(spare).first(y.size()));
    const std::optional<Hinge> fit = fit_hinge(y, kLeastRising);
    if (!fit || fit->rise <= 0 || fit->explained < kLeastLineFit) continue;
    const auto line = y.subspan(fit->at);
    const auto values = static_cast<double>(line.size() - 1);
    const double grown = fit->rise * values;
    if (grown < least || grown < kAboveNoise * noise) continue;
    if (y.back() < *std::ranges::max_element(y) - least / 2) continue;
    if (largest_step(line) > kMostAtOnce * grown) continue;
    const std::size_t quarter = std::max<std::size_t>(1, (line.size() - 1) / 4);
    const double late = mean(line.last(quarter)) - mean(line.last(2 * quarter).first(quarter));
    if (late < kStillRising * fit->rise * static_cast<double>(quarter)) continue;
    // The standard error of the slope of m + 1 points with that scatter: s sqrt(12 / m^3).
    const double error = 2 * noise * std::sqrt(12 / (values * values * values)) + 0.1 * fit->rise;
    const auto steps = static_cast<double>(each);
    Rates rates{fit->rise - error, fit->rise, fit->rise + error};
    if (const auto parts = rates_of(line)) {
      rates.slowest = std::min(rates.slowest, parts->slowest);
      rates.fastest = std::max(rates.fastest, parts->fastest);
    }
    rates = {rates.slowest / steps, rates.likely / steps, rates.fastest / steps};
    return Rise{(line.size() - 1) * each, fit->level, fit->level + grown, fit->rise / steps, rates, k};
  }
  return std::nullopt;
}

}  // namespace finitude::signal
