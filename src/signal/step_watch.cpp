#include "signal/step_watch.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "signal/onset.h"

namespace finitude::signal {
namespace {

const double kTenfold = std::log(10.0);

// Growth: of the loss alone; of the loss, where the gradients grow tenfold with it; of the gradients alone, where the
// loss has not come down meanwhile.
const double kLossGrowth = std::log(10.0), kLossGrowthBoth = std::log(3.0), kGradientGrowth = std::log(100.0);
constexpr double kFell = 0.02;  // in logarithms: by more the loss has come down
// A jump: two steps in a row that each bring threefold, to fifty times all that was before them. No line is fitted to
// so few; a spike that comes back after one step is none.
constexpr std::uint64_t kJumpSteps = 2;
const double kJumpStep = std::log(3.0), kJump = std::log(50.0);
// A spike stays for kSpikeSteps: a loss tenfold, and far beyond its scatter, with threefold gradients.
constexpr std::size_t kSpikeSteps = 4, kSpikeAfter = 32;
const double kSpike = std::log(10.0), kSpikeGradient = std::log(3.0);
constexpr double kSpikeScatter = 10;
// A single step far outside: by that many times the scatter, which counts no less than the first factor and no more
// than the second.
constexpr double kOutlierScatter = 40;
const double kOutlierLoss[] = {std::log(30.0), std::log(1000.0)}, kOutlierGradient[] = {std::log(10.0), std::log(30.0)};
constexpr std::uint32_t kMostOutliers = 100;  // that are reported
constexpr float kScaleFall = 1024, kSmallScale = 16;
const double kVanished = std::log(1e6);
// A loss that fell below that share of what it began with has nothing left to say but the noise of its arithmetic.
const double kNoiseFloor = std::log(1e-4);
constexpr std::uint64_t kFirstSteps = 16;  // their medians are what the training began with
// Clipping that takes nearly all of each step: the learning rate is no longer what sets its size.
constexpr double kFarClipped = 10;  // times the norm that is allowed
constexpr std::uint32_t kClippedSteps = 200;
constexpr std::uint16_t kDeadSteps = 200;
constexpr std::uint16_t kNotCounted = 0xffff;  // no gradient but zero so far, or reported
constexpr std::size_t kMostDead = 8;
constexpr std::size_t kMostNamedRows = 7;  // of each end, of which the middle one says how far a gradient has grown

bool is_usable(double value) noexcept { return std::isfinite(value) && value != 0; }

double tail_median(const Window& window, std::size_t count) noexcept {
  std::array<double, kKept> room;
  count = std::min(count, window.size());
  for (std::size_t i = 0; i < count; ++i) room[i] = window[window.size() - count + i];
  return median({room.data(), count});
}

struct Usual {
  double value = 0, scatter = 0;  // medians: of the values, and of the distance of one to the next
};

// Without the last `count`.
Usual usual_before(const Window& window, std::size_t count) noexcept {
  std::array<double, kKept> room, steps;
  const auto before = window.copy(room).first(window.size() - count);
  for (std::size_t i = 0; i + 1 < before.size(); ++i) steps[i] = std::fabs(before[i + 1] - before[i]);
  return {median(before), median({steps.data(), before.size() - 1})};
}

// Whether the last value, less that, is the first one far above what is usual.
bool is_far_outside(const Window& window, double less, const double (&bounds)[2]) noexcept {
  const double last = window.last() - less, before = window[window.size() - 2];
  if (last - before < bounds[0]) return false;  // of nearly every step
  const Usual usual = usual_before(window, 1);
  return before - usual.value < bounds[0] &&
         last - usual.value >= std::clamp(kOutlierScatter * usual.scatter, bounds[0], bounds[1]);
}

}  // namespace

bool StepWatch::Said::is_news(double value) noexcept {
  if (is_under_way() && value < at + next) return false;
  next = is_under_way() ? 2 * next : kTenfold;
  at = value;
  return true;
}

void StepWatch::Said::forget_if_below(double value) noexcept {
  if (value < at - 2 * kTenfold) at = -std::numeric_limits<double>::infinity();
}

bool StepWatch::note(const Sample& sample, std::span<const float> gradients) {
  if (!is_usable(sample.loss) && !is_usable(sample.grad_absmax)) return false;
  if (is_usable(sample.loss)) {
    positive_losses_ = sample.loss > 0 ? positive_losses_ + 1 : 0;
    loss_.push(std::log(std::fabs(sample.loss)));
  }
  if (is_usable(sample.grad_absmax)) gradient_.push(std::log(sample.grad_absmax));
  keep_gradients(gradients);
  if (gradient_.pushed() == kFirstSteps) first_gradient_ = tail_median(gradient_.level(0), kFirstSteps);
  if (loss_.pushed() == kFirstSteps) first_loss_ = tail_median(loss_.level(0), kFirstSteps);

  look_at_growth(sample);
  look_at_jump(sample, true);
  look_at_jump(sample, false);
  look_at_spike(sample);
  look_at_outlier(sample);
  look_at_scale(sample);
  look_at_vanishing(sample);
  look_at_norm(sample);
  look_at_dead(sample, gradients);
  return !pending_.empty();
}

double StepWatch::gradient_growth(double grad_absmax) const noexcept {
  const bool is_known = gradient_.pushed() >= kFirstSteps && grad_absmax > 0;
  return is_known ? grad_absmax / std::exp(first_gradient_) : std::numeric_limits<double>::quiet_NaN();
}

std::vector<Warning> StepWatch::take() { return std::exchange(pending_, {}); }

bool StepWatch::loss_fell_since(std::uint64_t steps) const noexcept {
  if (positive_losses_ < steps) return false;
  return tail_median(loss_.level(0), kBlock / 2) < loss_.before(steps) - kFell;
}

bool StepWatch::is_noise(double log_loss) const noexcept {
  return loss_.pushed() >= kFirstSteps && log_loss < first_loss_ + kNoiseFloor;
}

void StepWatch::look_at_growth(const Sample& sample) {
  const auto add = [&](const Rise& rise, bool of_loss) {
    said_growth_[of_loss].forget_if_below(rise.to);
    report_growth(sample, of_loss, {rise.steps, rise.from, rise.to, rise.rates});
  };
  const std::optional<Rise> loss = is_usable(sample.loss) ? loss_.rise(kLossGrowthBoth) : std::nullopt;
  if (loss && loss->steps < positive_losses_ && !is_noise(loss->to)) {
    const bool enough = loss->to - loss->from >= kLossGrowth || gradient_.rise(kTenfold, true);
    if (enough) return add(*loss, true);
  }
  const std::optional<Rise> gradient = is_usable(sample.grad_absmax) ? gradient_.rise(kGradientGrowth) : std::nullopt;
  if (gradient && !loss_fell_since(gradient->steps)) add(*gradient, false);
}

void StepWatch::look_at_jump(const Sample& sample, bool of_loss) {
  const Window& y = (of_loss ? loss_ : gradient_).level(0);
  const std::size_t n = y.size();
  if (n < kJumpSteps + 2 || !is_usable(of_loss ? sample.loss : sample.grad_absmax)) return;
  double slowest = y[n - 1] - y[n - 2], fastest = slowest;
  for (std::size_t i = n - kJumpSteps; i + 1 < n; ++i) {
    slowest = std::min(slowest, y[i] - y[i - 1]);
    fastest = std::max(fastest, y[i] - y[i - 1]);
  }
  const double from = y[n - 1 - kJumpSteps], to = y.last();
  if (slowest < kJumpStep) return;
  double highest = from;
  for (std::size_t i = 0; i + kJumpSteps < n; ++i) highest = std::max(highest, y[i]);
  if (to - highest < kJump) return;
  if (of_loss ? positive_losses_ <= kJumpSteps || is_noise(to) : said_growth_[1].is_under_way()) return;
  report_growth(sample, of_loss, {kJumpSteps, from, to, {slowest, (to - from) / kJumpSteps, fastest}});
}

// The rules above say when to warn, from the last steps. Where it began, and at which rate it grows, are those of the
// longest line that ends here; of a growth that sped up, of the first of several that follow one another.
StepWatch::Course StepWatch::whole_course(bool of_loss, Course course) const {
  const Window& window = (of_loss ? loss_ : gradient_).level(0);
  const std::size_t n = of_loss ? std::min<std::size_t>(window.size(), positive_losses_) : window.size();
  if (course.steps >= n) return course;
  std::array<double, kKept> logs, values;
  const auto y = window.copy(logs).last(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = std::exp(y[i]);
  std::size_t end = n;
  for (auto line = growth_to_end({values.data(), end}); line; line = growth_to_end({values.data(), end})) {
    if (end == n) {
      if (const auto rates = rates_of(y.subspan(line->at))) course.rates = *rates;
    }
    end = line->at + 1;
    course.steps = n - end;
    course.from = y[line->at];
  }
  return course;
}

void StepWatch::report_growth(const Sample& sample, bool of_loss, const Course& seen) {
  Said& said = said_growth_[of_loss];
  const bool continues = said.is_under_way();
  if (!said.is_news(seen.to)) return;
  const Course course = whole_course(of_loss, seen);
  if (const std::uint64_t since = sample.step - std::min(sample.step, course.steps); !continues || since < said.since) {
    said.since = since;
    said.from = std::exp(course.from);
  }
  Warning w;
  w.of = of_loss ? Quantity::kLoss : Quantity::kGradient;
  w.step = sample.step;
  w.since = said.since;
  w.from = said.from;
  w.to = std::exp(course.to);
  w.factor = std::exp(course.rates.likely);
  w.lr = sample.lr;
  w.horizon = horizon_of(course.to, course.rates, limit_);
  name_largest(w);
  pending_.push_back(w);
}

void StepWatch::look_at_spike(const Sample& sample) {
  const Window &loss = loss_.level(0), &gradient = gradient_.level(0);
  if (loss.size() < kSpikeAfter || gradient.size() < kSpikeAfter || positive_losses_ < loss.size()) return;
  // One comparison in nearly every step: the last one is not far above the one just before a spike would have begun.
  if (loss.last() - loss[loss.size() - 1 - kSpikeSteps] < kSpike) return;
  const auto [usual, scatter] = usual_before(loss, kSpikeSteps);
  const double least = usual + std::max(kSpike, kSpikeScatter * scatter);
  double lowest = loss.last();
  for (std::size_t i = loss.size() - kSpikeSteps; i < loss.size(); ++i) lowest = std::min(lowest, loss[i]);
  if (lowest < least || is_noise(lowest)) return;
  if (lowest - loss[loss.size() - 1 - kSpikeSteps] < kSpike / 2) return;  // a growth, with one spike at its end
  if (tail_median(gradient, kSpikeSteps) < tail_median(gradient, kKept) + kSpikeGradient) return;
  said_spike_.forget_if_below(loss.last());
  if (said_growth_[1].is_under_way() && loss.last() >= said_growth_[1].at) return;  // its growth is reported
  if (!said_spike_.is_news(loss.last())) return;
  Warning w;
  w.what = What::kSpike;
  w.of = Quantity::kLoss;
  w.step = sample.step;
  w.since = sample.step - std::min<std::uint64_t>(sample.step, kSpikeSteps - 1);
  w.from = std::exp(usual);
  w.to = std::exp(lowest);
  w.lr = sample.lr;
  pending_.push_back(w);
}

// Where clipping has cut the gradients down to what is usual the step did no harm.
void StepWatch::look_at_outlier(const Sample& sample) {
  const Window &loss = loss_.level(0), &gradient = gradient_.level(0);
  if (!is_usable(sample.loss) || !is_usable(sample.grad_absmax)) return;
  if (loss.size() < kSpikeAfter || gradient.size() < kSpikeAfter || positive_losses_ < loss.size()) return;
  const double clipped = sample.max_norm > 0 ? std::max(0.0, std::log(sample.norm / sample.max_norm)) : 0;
  if (!is_far_outside(loss, 0, kOutlierLoss) || !is_far_outside(gradient, clipped, kOutlierGradient)) return;
  if (is_noise(loss.last()) || ++outliers_ > kMostOutliers) return;
  Warning w;
  w.what = What::kOutlier;
  w.of = Quantity::kLoss;
  w.step = w.since = sample.step;
  w.from = std::exp(usual_before(loss, 1).value);
  w.to = std::exp(loss.last());
  w.lr = sample.lr;
  pending_.push_back(w);
}

void StepWatch::look_at_scale(const Sample& sample) {
  largest_scale_ = std::max(largest_scale_, sample.loss_scale);
  if (!(sample.loss_scale > 0) || sample.loss_scale > kSmallScale || sample.loss_scale > largest_scale_ / kScaleFall)
    return;
  if (!said_scale_.is_news(-std::log(sample.loss_scale))) return;
  Warning w;
  w.what = What::kScale;
  w.step = w.since = sample.step;
  w.from = largest_scale_;
  w.to = sample.loss_scale;
  pending_.push_back(w);
}

void StepWatch::look_at_vanishing(const Sample& sample) {
  if (gradient_.pushed() % kBlock != 0 || gradient_.pushed() < 4 * kFirstSteps || loss_.pushed() < 4 * kFirstSteps)
    return;
  const double now = tail_median(gradient_.level(0), kBlock);
  if (now > first_gradient_ - kVanished) return;
  if (tail_median(loss_.level(0), kBlock) < first_loss_ - std::log(2.0)) return;
  if (!said_vanishing_.is_news(-now)) return;
  Warning w;
  w.what = What::kVanishing;
  w.step = sample.step;
  w.since = 0;
  w.from = std::exp(first_gradient_);
  w.to = std::exp(now);
  pending_.push_back(w);
}

void StepWatch::look_at_norm(const Sample& sample) {
  if (!is_usable(sample.norm)) return;
  Warning w;
  w.step = w.since = sample.step;
  w.to = sample.norm;
  w.lr = sample.lr;
  if (norm_limit_ > 0) {
    said_norm_.forget_if_below(std::log(sample.norm));
    if (sample.norm > norm_limit_ && said_norm_.is_news(std::log(sample.norm))) {
      w.what = What::kNorm;
      w.from = norm_limit_;
      pending_.push_back(w);
    }
  }
  const bool is_far = sample.max_norm > 0 && sample.norm > kFarClipped * sample.max_norm;
  clipped_ = is_far ? clipped_ + 1 : 0;
  if (!is_far) said_clipping_ = {};
  if (clipped_ < kClippedSteps || !said_clipping_.is_news(std::log(sample.norm / sample.max_norm))) return;
  w.what = What::kClipping;
  w.since = sample.step - std::min<std::uint64_t>(sample.step, clipped_ - 1);
  w.from = sample.max_norm;
  pending_.push_back(w);
}

void StepWatch::keep_gradients(std::span<const float> gradients) {
  if (gradients.size() != width_) {
    width_ = gradients.size();
    row_ = rows_kept_ = 0;
    rows_.assign(kRows * width_, 0);
    zeros_.assign(width_, kNotCounted);
  }
  if (width_ == 0) return;
  std::ranges::copy(gradients, rows_.begin() + static_cast<std::ptrdiff_t>(row_ * width_));
  row_ = (row_ + 1) % kRows;
  rows_kept_ = std::min(rows_kept_ + 1, kRows);
}

void StepWatch::look_at_dead(const Sample& sample, std::span<const float> gradients) {
  if (!(sample.grad_absmax > 0)) return;
  for (std::uint32_t i = 0; i < gradients.size(); ++i) {
    std::uint16_t& zeros = zeros_[i];
    if (gradients[i] > 0) zeros = 0;
    if (gradients[i] != 0 || zeros == kNotCounted || ++zeros < kDeadSteps) continue;
    zeros = kNotCounted;
    if (std::ranges::count_if(pending_, [](const Warning& w) { return w.what == What::kDead; }) >=
        static_cast<int>(kMostDead))
      continue;
    Warning w;
    w.what = What::kDead;
    w.parameter = i;
    w.step = sample.step;
    w.since = sample.step - std::min<std::uint64_t>(sample.step, kDeadSteps - 1);
    pending_.push_back(w);
  }
}

// Of one gradient, over the rows from `back` rows before the last one on. That of a bias, say, is nearly zero in some
// steps.
double StepWatch::usual_gradient(std::size_t parameter, std::size_t back, std::size_t count) const noexcept {
  std::array<double, kMostNamedRows> room;
  for (std::size_t i = 0; i < count; ++i)
    room[i] = static_cast<double>(rows_[(row_ + 2 * kRows - 1 - back + i) % kRows * width_ + parameter]);
  return median({room.data(), count});
}

// The parameter whose gradient has grown most since the onset, as far back as the rows reach.
void StepWatch::name_largest(Warning& warning) const {
  if (rows_kept_ < 2) return;
  const std::size_t back = std::min<std::size_t>(rows_kept_ - 1, warning.step - warning.since);
  const std::size_t count = std::min((back + 1) / 2, kMostNamedRows);
  if (count == 0) return;
  std::vector<std::pair<double, std::uint32_t>> grown;
  for (std::uint32_t i = 0; i < width_; ++i) {
    const double now = usual_gradient(i, count - 1, count), then = usual_gradient(i, back, count);
    if (now > 0 && then > 0) grown.emplace_back(now / then, i);
  }
  if (grown.empty()) return;
  std::ranges::sort(grown, std::greater<>());
  warning.parameter = grown.front().second;
  warning.is_widespread =
      grown.size() > 1 && std::log(grown[grown.size() / 2].first) > 0.5 * std::log(grown.front().first);
}

}  // namespace finitude::signal
