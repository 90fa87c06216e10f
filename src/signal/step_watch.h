// What is noticed of loss and gradients while they are still finite: that they grow and do not stop, a level that
// jumped and stays, a single step far outside of the others, a loss scale that collapses, gradients that vanish, a norm
// above its limit or clipped to nearly nothing step by step, a parameter that gets no gradient any more.
//
// One StepWatch for each optimizer. It is given each applied step once and keeps a fixed amount of memory; nothing is
// allocated in the steady state, and a non-finite value is never kept. It is pure: the same steps give the same
// warnings, while a program runs and when its record is read later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "signal/horizon.h"
#include "signal/trend.h"
#include "signal/warning.h"

namespace finitude::signal {

// A step that was applied.
struct Sample {
  std::uint64_t step = 0;
  double loss = 0;         // 0 or non-finite: not known
  double grad_absmax = 0;  // largest magnitude of all gradients; 0: not known
  double lr = 0;
  float loss_scale = 0;  // 0: no GradScaler
  double norm = 0;       // of all gradients, before they were clipped; 0: not known
  double max_norm = 0;   // to which they were clipped; 0: they were not
};

class StepWatch {
 public:
  // limit: the largest value of the dtype that the gradients have. norm_limit: a norm above it is warned of; 0: none
  // is.
  explicit StepWatch(double limit = 3.4028234663852886e38, double norm_limit = 0)
      : limit_(limit), norm_limit_(norm_limit) {}

  // `gradients`: the largest magnitude of each parameter's gradient, in order; negative where it has none. Empty: not
  // known. Returns whether there is a warning to take.
  bool note(const Sample& sample, std::span<const float> gradients = {});
  std::vector<Warning> take();
  // How many times the median of the first steps this magnitude of all gradients is. NaN: those steps are not over.
  double gradient_growth(double grad_absmax) const noexcept;

 private:
  // What was warned of last of one kind. It is said again when it has become ten times worse, then a hundred times,
  // then ten thousand times: a loss that explodes does so in each step.
  struct Said {
    double at = -std::numeric_limits<double>::infinity();
    double next = 0;          // how far above `at` it is news again; a logarithm
    std::uint64_t since = 0;  // with `from`: the onset, which the finest level forgets in a long growth
    double from = 0;
    bool is_news(double value) noexcept;
    void forget_if_below(double value) noexcept;
    bool is_under_way() const noexcept { return at != -std::numeric_limits<double>::infinity(); }
  };

  struct Course {  // up to this step
    std::uint64_t steps = 0;
    double from = 0, to = 0;  // logarithms
    Rates rates;
  };

  void look_at_growth(const Sample& sample);
  void look_at_jump(const Sample& sample, bool of_loss);
  void look_at_spike(const Sample& sample);
  void look_at_outlier(const Sample& sample);
  void look_at_scale(const Sample& sample);
  void look_at_vanishing(const Sample& sample);
  void look_at_norm(const Sample& sample);
  void keep_gradients(std::span<const float> gradients);
  void look_at_dead(const Sample& sample, std::span<const float> gradients);
  void name_largest(Warning& warning) const;
  double usual_gradient(std::size_t parameter, std::size_t back, std::size_t count) const noexcept;
  Course whole_course(bool of_loss, Course course) const;
  void report_growth(const Sample& sample, bool of_loss, const Course& seen);
  bool loss_fell_since(std::uint64_t steps) const noexcept;
  bool is_noise(double log_loss) const noexcept;

  double limit_, norm_limit_;
  Trend loss_, gradient_;
  std::uint32_t positive_losses_ = 0;  // in a row: that a negative one falls is no growth
  Said said_growth_[2], said_spike_, said_scale_, said_vanishing_, said_norm_, said_clipping_;
  std::uint32_t outliers_ = 0;
  std::uint32_t clipped_ = 0;                   // steps in a row whose norm was many times the one allowed
  double first_loss_ = 0, first_gradient_ = 0;  // medians of the first steps, as logarithms
  float largest_scale_ = 0;
  static constexpr std::size_t kRows = 64;
  std::vector<float> rows_;  // kRows steps of the gradients, a step after the other
  std::size_t width_ = 0, row_ = 0, rows_kept_ = 0;
  std::vector<std::uint16_t> zeros_;  // steps in a row in which a gradient was exactly zero; kGone: reported
  std::vector<Warning> pending_;
};

}  // namespace finitude::signal
