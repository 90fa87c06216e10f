#include "signal/weight_watch.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "signal/horizon.h"
#include "signal/onset.h"

namespace finitude::signal {
namespace {

constexpr std::size_t kLeastPasses = 6;        // with a growth that lasts over
constexpr std::size_t kLeastRisingPasses = 4;  // of them
constexpr double kAboveStart = 10;             // times the largest weight that the training began with
constexpr double kAloneAboveStart = 4;         // the same of one that grows alone: its layer, not the training
constexpr double kLeastExplained = 0.8;        // of the variance of the logarithms
constexpr double kSteady = 0.8;  // of the average rise, over the last half: a rise that levels off is learning
constexpr std::uint32_t kStillPasses = 4;         // without a change
const double kLeastWeightGrowth = std::log(4.0);  // of a parameter that is named
// Of one that grows alone: over all passes that are kept, and from each of the last ones to the next.
const double kGrownAlone = std::log(1.8), kGrowsAlone = std::log(1.1);
constexpr std::size_t kAlonePasses = 3;
constexpr double kHardlyGrown = 0.25;  // of its growth, in logarithms

}  // namespace

float WeightWatch::kept(std::size_t back, std::size_t parameter) const noexcept {
  return passes_[(next_ + kPasses - 1 - back) % kPasses * width_ + parameter];
}

std::uint64_t WeightWatch::step_of(std::size_t back) const noexcept {
  return steps_[(next_ + kPasses - 1 - back) % kPasses];
}

std::vector<Warning> WeightWatch::note(std::uint64_t step, double lr, std::span<const Weight> weights) {
  std::vector<Warning> found;
  if (weights.size() != width_) {
    const double limit = limit_;
    *this = WeightWatch(limit);
    width_ = weights.size();
    passes_.assign(kPasses * width_, 0);
  }
  float* row = passes_.data() + next_ * width_;
  for (const Weight& weight : weights) *row++ = weight.absmax;
  steps_[next_] = step;
  next_ = (next_ + 1) % kPasses;
  size_ = std::min(size_ + 1, kPasses);
  if (started_with_ == 0) {
    for (const Weight& weight : weights) started_with_ = std::max(started_with_, weight.absmax);
  }
  look_at_growth(step, lr, &found);
  look_at_standstill(step, lr, weights, &found);
  return found;
}

bool WeightWatch::grows(std::size_t parameter, Course* course) const {
  std::array<double, kPasses> room;
  std::size_t count = 0;
  while (count < size_ && kept(count, parameter) > 0) ++count;
  if (count < kLeastPasses) return false;
  for (std::size_t i = 0; i < count; ++i) room[i] = std::log(static_cast<double>(kept(count - 1 - i, parameter)));
  const std::span<double> values(room.data(), count);
  std::array<double, kPasses> spare;
  remove_spikes(values, std::span(spare).first(count));
  const auto fit = fit_hinge(values, kLeastRisingPasses);
  if (!fit || fit->rise <= 0 || fit->explained < kLeastExplained) return false;
  const std::size_t rising = count - 1 - fit->at, half = rising / 2;
  *course = {count - 1 - fit->at, values[fit->at], values.back(),
             (values.back() - values[fit->at]) / static_cast<double>(rising),
             (values.back() - values[count - 1 - half]) / static_cast<double>(half)};
  const double grown = course->to - course->from;
  return grown >= kLeastWeightGrowth && course->late_rise >= kSteady * course->rise &&
         largest_step(values.subspan(fit->at)) <= kMostAtOnce * grown;
}

// A small parameter, a bias say, may grow far without harm: what counts is where the largest weight began.
void WeightWatch::look_at_growth(std::uint64_t step, double lr, std::vector<Warning>* found) {
  if (size_ < kLeastPasses) return;
  const auto lasting = [&](std::size_t i) { return std::min(kept(0, i), kept(1, i)); };  // a spike is in one pass
  float largest = 0;
  for (std::size_t i = 0; i < width_; ++i) {
    if (!std::isfinite(kept(0, i))) return;
    largest = std::max(largest, lasting(i));
  }
  if (largest < kAloneAboveStart * started_with_ || largest < 10 * said_) return;
  const std::uint32_t alone = growing_alone();
  if (alone == kNoParameter && largest < kAboveStart * started_with_) return;
  Warning w;
  double most = 0;
  Course worst;
  std::size_t growing = 0;
  for (std::uint32_t i = 0; i < width_; ++i) {
    Course course;
    if (!grows(i, &course)) continue;
    ++growing;
    if (lasting(i) < (i == alone ? kAloneAboveStart : kAboveStart) * started_with_ || course.to - course.from <= most)
      continue;
    most = course.to - course.from;
    worst = course;
    w.parameter = i;
  }
  if (most == 0) return;
  said_ = largest;
  w.of = Quantity::kWeight;
  w.step = step;
  w.since = step_of(worst.at);
  w.from = std::exp(worst.from);
  w.to = std::exp(worst.to);
  const double each = static_cast<double>(step - w.since) / static_cast<double>(worst.at);  // steps of a pass
  const double low = std::min(worst.rise, worst.late_rise), high = std::max(worst.rise, worst.late_rise);
  w.factor = std::exp(worst.rise / each);
  w.horizon = horizon_of(worst.to, {low / each, worst.rise / each, high / each}, limit_);
  w.lr = lr;
  w.is_widespread = growing > width_ / 2;
  found->push_back(w);
}

std::uint32_t WeightWatch::growing_alone() const {
  if (size_ < 2) return kNoParameter;
  const auto risen = [&](std::size_t from, std::size_t to, std::size_t i) {  // passes before the last one
    return std::log(static_cast<double>(kept(to, i)) / static_cast<double>(kept(from, i)));
  };
  const std::size_t first = size_ - 1;
  float largest = 0;
  for (std::size_t i = 0; i < width_; ++i) largest = std::max(largest, kept(0, i));
  std::uint32_t named = kNoParameter;
  double most = kGrownAlone;
  for (std::uint32_t i = 0; i < width_; ++i) {
    bool is_steady = kept(first, i) > 0 && kept(0, i) >= largest / 2;  // small ones may grow without harm
    for (std::size_t back = 0; back < std::min(kAlonePasses, first); ++back)
      is_steady = is_steady && risen(back + 1, back, i) >= kGrowsAlone;
    if (!is_steady || !(risen(first, 0, i) >= most)) continue;
    most = risen(first, 0, i);
    named = i;
  }
  std::size_t still = 0;
  for (std::size_t i = 0; i < width_; ++i)
    still += kept(first, i) > 0 && std::fabs(risen(first, 0, i)) < kHardlyGrown * most;
  return 3 * still >= width_ ? named : kNoParameter;
}

void WeightWatch::look_at_standstill(std::uint64_t step, double lr, std::span<const Weight> weights,
                                     std::vector<Warning>* found) {
  bool is_known = false, has_changed = false;
  for (const Weight& weight : weights) {
    is_known |= weight.absmax >= 0;
    has_changed |= weight.absmax >= 0 && weight.has_changed;
  }
  const bool is_still = lr > 0 && size_ > 1 && is_known && !has_changed;
  if (!is_still) {
    still_passes_ = 0;
    still_since_ = step;
    return;
  }
  if (++still_passes_ != kStillPasses) return;
  Warning w;
  w.what = What::kNoLearning;
  w.step = step;
  w.since = still_since_;
  w.lr = lr;
  found->push_back(w);
}

}  // namespace finitude::signal
