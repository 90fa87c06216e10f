#include "signal/reach_watch.h"

#include <algorithm>
#include <cmath>

namespace finitude::signal {
namespace {

constexpr double kMuch = 100;  // exp(-100) is 0 in float32: one weight is 1, and the others have no gradient
constexpr double kGrown = 4;   // times what the training began with
constexpr double kAgain = 10;  // times what was warned of last

}  // namespace

std::optional<Warning> ReachWatch::note(std::uint64_t step, double lr, double reach) {
  if (!(reach > 0) || !std::isfinite(reach)) return std::nullopt;
  if (looks_ < kFirstLooks) {
    first_[looks_++] = reach;
    since_ = step;
    std::array<double, kFirstLooks> sorted = first_;
    std::sort(sorted.begin(), sorted.end());
    usual_ = sorted[kFirstLooks / 2];
    next_ = std::max(kMuch, kGrown * usual_);
    before_ = 0;
    return std::nullopt;
  }
  if (reach < 2 * usual_) since_ = step;
  const double least = std::min(reach, before_);  // one batch may be an outlier
  before_ = reach;
  if (least < next_) return std::nullopt;
  next_ = kAgain * least;
  Warning w;
  w.what = what_;
  w.step = step;
  w.since = since_;
  w.from = usual_;
  w.to = reach;
  w.factor = step > since_ ? std::pow(reach / usual_, 1.0 / static_cast<double>(step - since_)) : 1;
  w.lr = lr;
  return w;
}

}  // namespace finitude::signal
