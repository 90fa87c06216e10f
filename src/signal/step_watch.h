// What is noticed of a training while its values are still finite: loss and gradients that grow and do not stop, a
// level that jumped and stays, a loss scale that collapses, gradients that vanish, a parameter that gets none any more.
//
// One StepWatch for each optimizer. It is given each applied step once and keeps a fixed amount of memory; nothing is
// allocated in the steady state, and a non-finite value is never kept. It is pure: the same steps give the same
// warnings, while a program runs and when its record is read later.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "signal/trend.h"

namespace finitude::signal {

enum class What : std::uint8_t { kGrowth, kSpike, kVanishing, kScale, kDead };
std::string_view word(What what) noexcept;  // "growth", "spike", "vanishing", "scale", "dead"

// A step that was applied.
struct Sample {
  std::uint64_t step = 0;
  double loss = 0;         // 0 or non-finite: not known
  double grad_absmax = 0;  // largest magnitude of all gradients; 0: not known
  double lr = 0;
  float loss_scale = 0;  // 0: no GradScaler
};

inline constexpr std::uint32_t kNoParameter = std::numeric_limits<std::uint32_t>::max();

struct Warning {
  What what = What::kGrowth;
  bool of_loss = false;                    // else of the gradients
  std::uint32_t parameter = kNoParameter;  // index of the one concerned, or of the one that grew most
  bool is_widespread = false;              // most of the others grew about as much
  std::uint64_t step = 0, since = 0;
  double from = 0, to = 0;  // of the quantity, or of the loss scale
  double factor = 1;        // per step; 1 where that says nothing
  double lr = 0;
  // Steps until the dtype's largest value is reached if it continues: at the earliest its square root, since squares of
  // it overflow there. None: not in 100,000 steps.
  std::optional<std::array<std::uint64_t, 2>> horizon;
};

// One sentence without the step, in which `name` is "loss", "gradients" or the name of a parameter.
std::string in_words(const Warning& warning, const std::string& name);
// A JSON array with the fields of each, "parameter" and "horizon" null where there is none; and back. from_json throws
// nlohmann::json::exception for anything else.
std::string as_json(const std::vector<Warning>& warnings);
std::vector<Warning> from_json(const std::string& text);

class StepWatch {
 public:
  // `limit`: the largest value of the dtype that the gradients have.
  explicit StepWatch(double limit = 3.4028234663852886e38) : limit_(limit) {}

  // `gradients`: the largest magnitude of each parameter's gradient, in order; negative where it has none. Empty: not
  // known. Returns whether there is a warning to take.
  bool note(const Sample& sample, std::span<const float> gradients = {});
  std::vector<Warning> take();

 private:
  // What was warned of last of one kind: said again only when it has become ten times worse.
  struct Said {
    double at = -std::numeric_limits<double>::infinity();
    std::uint64_t since = 0;  // with `from`: the onset, which the finest level forgets in a long growth
    double from = 0;
    bool is_news(double value) noexcept;
    void forget_if_below(double value) noexcept;
    bool is_under_way() const noexcept { return at != -std::numeric_limits<double>::infinity(); }
  };

  struct Course {  // up to this step
    std::uint64_t steps = 0;
    double from = 0, to = 0;  // logarithms
  };
  struct Rates {  // per step, in logarithms
    double slowest = 0, likely = 0, fastest = 0;
  };

  void look_at_growth(const Sample& sample);
  void look_at_jump(const Sample& sample, bool of_loss);
  void look_at_spike(const Sample& sample);
  void look_at_scale(const Sample& sample);
  void look_at_vanishing(const Sample& sample);
  void keep_gradients(std::span<const float> gradients);
  void look_at_dead(const Sample& sample, std::span<const float> gradients);
  void name_largest(Warning& warning) const;
  void report_growth(const Sample& sample, bool of_loss, const Course& course, const Rates& rates);
  std::optional<std::array<std::uint64_t, 2>> horizon_of(double log_value, const Rates& rates) const;
  bool loss_fell_since(std::uint64_t steps) const noexcept;
  bool is_noise(double log_loss) const noexcept;

  double limit_;
  Trend loss_, gradient_;
  std::uint32_t positive_losses_ = 0;  // in a row: that a negative one falls is no growth
  Said said_growth_[2], said_spike_, said_scale_, said_vanishing_;
  double first_loss_ = 0, first_gradient_ = 0;  // medians of the first steps, as logarithms
  float largest_scale_ = 0;
  static constexpr std::size_t kRows = 64;
  std::vector<float> rows_;  // kRows steps of the gradients, a step after the other
  std::size_t width_ = 0, row_ = 0, rows_kept_ = 0;
  std::vector<std::uint16_t> zeros_;  // steps in a row in which a gradient was exactly zero; kGone: reported
  std::vector<Warning> pending_;
};

}  // namespace finitude::signal
