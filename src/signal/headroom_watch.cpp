#include "signal/headroom_watch.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "signal/horizon.h"

namespace finitude::signal {
namespace {

constexpr double kLn2 = 0.69314718055994531;
constexpr double kNearBits = 12;                                      // from here on the course is kept
constexpr double kForecastBits = 8;                                   // with fewer left, a forecast is worth a warning
constexpr double kFewBits = 4;                                        // with fewer left, any course is
constexpr std::size_t kFewSteps = 4;                                  // in a row
constexpr double kAgainBits = 2;                                      // lost since the last warning
constexpr std::uint64_t kSoonSteps = 200;                             // until the limit, at the latest
constexpr std::size_t kLeastForForecast = 12, kMostForForecast = 64;  // steps

}  // namespace

std::vector<Warning> HeadroomWatch::note(std::uint64_t step, double lr, double largest, double narrowest,
                                         std::span<const float> gradients, std::span<const double> limits) {
  if (!(largest * 4096 >= narrowest)) {  // nearly every step: none can be near
    said_ = 1;
    return {};
  }
  double worst = 0;
  Warning w;
  for (std::uint32_t i = 0; i < std::min(gradients.size(), limits.size()); ++i) {
    if (!(gradients[i] > 0) || !(limits[i] > 0)) continue;
    const double share = static_cast<double>(gradients[i]) / limits[i];
    if (share <= worst) continue;
    worst = share;
    w.parameter = i;
    w.from = limits[i];
    w.to = static_cast<double>(gradients[i]);
  }
  const double used = worst > 0 ? std::log(worst) : -1e9;
  if (used < -kNearBits * kLn2) {
    used_ = {};
    said_ = 1;
    return {};
  }
  if (step != next_) used_ = {};
  next_ = step + 1;
  used_.push(used);
  if (said_ <= 0 && used < said_ + kAgainBits * kLn2) return {};
  const std::size_t n = used_.size();
  if (n < kFewSteps) return {};
  double least = used;
  for (std::size_t i = n - kFewSteps; i < n; ++i) least = std::min(least, used_[i]);
  const bool is_near = least > -kFewBits * kLn2;
  if (!is_near && least < -kForecastBits * kLn2) return {};
  std::array<double, kKept> room;
  const std::span<const double> course = used_.copy(room).last(std::min(n, kMostForForecast));
  if (course.size() >= kLeastForForecast) {
    if (const auto rates = rates_of(course)) w.horizon = horizon_between(-used, -used, *rates);
    if (w.horizon) w.factor = std::exp(rates_of(course)->likely);
  }
  if (!is_near && (!w.horizon || (*w.horizon)[1] > kSoonSteps)) return {};
  said_ = used;
  w.what = What::kHeadroom;
  w.step = step;
  w.since = step - std::min<std::uint64_t>(step, n - 1);
  w.lr = lr;
  return {w};
}

}  // namespace finitude::signal
