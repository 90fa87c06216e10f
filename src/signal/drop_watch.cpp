#include "signal/drop_watch.h"

#include <algorithm>

namespace finitude::signal {
namespace {

constexpr std::uint64_t kWindows = 100;      // that are looked at
constexpr std::uint64_t kCalibration = 100;  // windows in which a scaler may look for its scale
constexpr std::uint64_t kAgainDrops = 10;    // times what was warned of last

}  // namespace

std::optional<Warning> DropWatch::note(std::uint64_t step, double lr, std::uint64_t dropped, std::uint64_t by_scaler) {
  for (std::uint64_t i = 0; i < dropped + by_scaler; ++i) {
    const bool is_by_scaler = i >= dropped;
    ++windows_;
    if (is_by_scaler && windows_ <= kCalibration) continue;
    last_[drops_++ % last_.size()] = {windows_, step, is_by_scaler};
  }
  ++windows_;
  if (dropped + by_scaler == 0 || drops_ < next_) return std::nullopt;
  Warning w;
  std::uint32_t count = 0;
  w.since = step;
  for (std::size_t i = 0; i < std::min<std::uint64_t>(drops_, last_.size()); ++i) {
    const Drop& one = last_[i];
    if (one.at + kWindows <= windows_) continue;
    ++count;
    w.layers += one.is_by_scaler;
    w.since = std::min(w.since, one.step);
  }
  if (count < kMany) return std::nullopt;
  next_ = kAgainDrops * drops_;
  w.what = What::kDropped;
  w.step = step;
  w.from = static_cast<double>(std::min(windows_, kWindows));
  w.to = count;
  w.lr = lr;
  return w;
}

}  // namespace finitude::signal
