// What is noticed of the largest magnitude that a softmax is given, in a loss (logits) or in attention: that it grows
// to where one weight is 1 and all others are 0.
//
// One ReachWatch for each of them. Pure, as StepWatch is. It is given single steps, far from each other.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "signal/warning.h"

namespace finitude::signal {

class ReachWatch {
 public:
  // what: kLogits or kAttention.
  explicit ReachWatch(What what) : what_(what) {}

  // That step was looked at. reach: above 0 and finite, else it does not count.
  std::optional<Warning> note(std::uint64_t step, double lr, double reach);

 private:
  static constexpr std::size_t kFirstLooks = 3;  // their median is what the training began with
  What what_;
  std::array<double, kFirstLooks> first_{};
  std::size_t looks_ = 0;
  double usual_ = 0;         // the median of the first looks
  std::uint64_t since_ = 0;  // the last look at which it had not doubled
  double before_ = 0;        // at the look before
  double next_ = 0;          // what is worth a warning; above the limit where one was given
};

}  // namespace finitude::signal
