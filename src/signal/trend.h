// The course of one positive quantity over the steps of an optimizer, at three resolutions in a fixed amount of memory:
// each of the last 128 steps, and medians of 16 and of 256 steps, so that fast and slow growth are seen alike.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "signal/horizon.h"

namespace finitude::signal {

inline constexpr std::size_t kLevels = 3;
inline constexpr std::size_t kBlock = 16;  // values of a level make one of the next
inline constexpr std::size_t kKept = 128;  // values of each level

// The last kKept values, oldest first.
class Window {
 public:
  void push(double value) noexcept;
  std::size_t size() const noexcept { return size_; }
  double operator[](std::size_t i) const noexcept { return values_[(begin_ + i) % kKept]; }
  double last() const noexcept { return (*this)[size_ - 1]; }
  double lowest() const noexcept;  // of at least one
  // All of them in `into`, which is returned as far as it is filled.
  std::span<const double> copy(std::array<double, kKept>& into) const noexcept;

 private:
  std::array<double, kKept> values_{};
  std::size_t begin_ = 0, size_ = 0;
};

struct Rise {
  std::uint64_t steps = 0;  // since the onset
  double from = 0, to = 0;  // logarithms
  double per_step = 0;      // of the line fitted, in logarithms
  Rates rates;              // per step, as they differ along the line
  std::size_t level = 0;    // on which it was found
};

// Values are natural logarithms of magnitudes.
class Trend {
 public:
  void push(double value) noexcept;
  // The rise of at least `least` up to the last step, of the finest level that shows one: a line fits it, more than
  // noise, still rising at its end. Looks only at levels that the last push has completed, and at the finest where it
  // is at a new height, so that the work of a step is bounded on average; `all` looks at each.
  std::optional<Rise> rise(double least, bool all = false) const noexcept;
  const Window& level(std::size_t k) const noexcept { return levels_[k]; }
  std::uint64_t pushed() const noexcept { return pushed_; }
  // The value that many steps ago, at the finest resolution that reaches back so far; the oldest kept where none does.
  double before(std::uint64_t steps) const noexcept;

 private:
  std::array<Window, kLevels> levels_;
  std::uint64_t pushed_ = 0;
};

// The middle one of at most kKept values.
double median(std::span<const double> values) noexcept;

}  // namespace finitude::signal
