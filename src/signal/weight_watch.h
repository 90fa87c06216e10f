// What is noticed of the weights of a training while they are still finite: that they grow and do not stop, and that
// none of them changes.
//
// One WeightWatch for each optimizer. Weights are read in rotation, so it is given them once for each pass over all of
// them, and keeps a fixed number of passes. Pure, as StepWatch is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "signal/warning.h"

namespace finitude::signal {

// A parameter as one pass found it.
struct Weight {
  float absmax = 0;         // largest magnitude; negative: not known, and it does not count
  bool has_changed = true;  // a sample of its bytes, since the pass before
};

class WeightWatch {
 public:
  // limit: the largest value of the dtype that the weights have.
  explicit WeightWatch(double limit = 3.4028234663852886e38) : limit_(limit) {}

  // A pass ended at that step, which was applied with gradients that are not zero. weights: of each parameter, in
  // order; another number of them is another training. Returns the warnings.
  std::vector<Warning> note(std::uint64_t step, double lr, std::span<const Weight> weights);
  // The parameter of which the largest weight grows steadily, while that of a third of the parameters hardly changes:
  // of such parameters the one that has grown most. A growth of the loss begins there, whatever the gradients do.
  std::uint32_t growing_alone() const;

 private:
  struct Course {                                      // of one parameter
    std::size_t at = 0;                                // the pass before the growth
    double from = 0, to = 0, rise = 0, late_rise = 0;  // logarithms; the rises per pass
  };
  float kept(std::size_t back, std::size_t parameter) const noexcept;  // back: passes before the last one
  std::uint64_t step_of(std::size_t back) const noexcept;
  bool grows(std::size_t parameter, Course* course) const;
  void look_at_growth(std::uint64_t step, double lr, std::vector<Warning>* found);
  void look_at_standstill(std::uint64_t step, double lr, std::span<const Weight> weights, std::vector<Warning>* found);

  static constexpr std::size_t kPasses = 64;
  double limit_;
  std::vector<float> passes_;  // kPasses rows of `width_`
  std::uint64_t steps_[kPasses] = {};
  std::size_t width_ = 0, next_ = 0, size_ = 0;
  float started_with_ = 0;  // the largest magnitude of the first pass
  double said_ = 0;         // the magnitude that was warned of last; 0: none was
  std::uint64_t still_since_ = 0;
  std::uint32_t still_passes_ = 0;
};

}  // namespace finitude::signal
