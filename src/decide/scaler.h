// When GradScaler's skips stop being calibration.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

namespace finitude::decide {

// A skip with a finite unscaled loss and bad gradients is "normal, up to 20 in a row and while the scale stays
// >= 1; beyond: alarm". One per run; not thread-safe.
class ScalerSkips {
 public:
  static constexpr std::uint32_t kNormalInARow = 20;

  struct Verdict {
    bool alarm = false;
    std::uint32_t in_a_row = 0;  // with this one
  };

  // `step`: calls of this optimizer's `step` that were not skipped by the scaler, so a higher one than at the last
  // skip says that a step was taken. `scale`: after the skip if it is known by then; nullopt: called with found_inf
  // by something that is no GradScaler.
  Verdict on_skip(std::uint32_t optimizer, std::uint64_t step, std::optional<double> scale);

  std::uint32_t in_a_row(std::uint32_t optimizer) const noexcept;

 private:
  struct Row {
    std::uint64_t step = 0;
    std::uint32_t length = 0;
    std::uint32_t reported = 0;  // so long when it alarmed
  };
  std::unordered_map<std::uint32_t, Row> rows_;
};

}  // namespace finitude::decide
