// What is noticed of steps that are not applied: that there are many of them.
//
// One DropWatch for each optimizer. Pure, in a fixed amount of memory, as StepWatch is.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "signal/warning.h"

namespace finitude::signal {

class DropWatch {
 public:
  // A step was applied. dropped: how many the program has dropped since the one before; by_scaler: how many a
  // GradScaler has skipped since, which while it looks for its scale are none.
  std::optional<Warning> note(std::uint64_t step, double lr, std::uint64_t dropped, std::uint64_t by_scaler);

 private:
  static constexpr std::size_t kMany = 10;
  struct Drop {
    std::uint64_t at = 0;    // which of all windows
    std::uint64_t step = 0;  // of the applied step that followed
    bool is_by_scaler = false;
  };
  std::array<Drop, 100> last_{};  // a ring of as many as there are windows in a look
  std::uint64_t drops_ = 0;       // that were put there
  std::uint64_t windows_ = 0;
  std::uint64_t next_ = kMany;  // drops that are worth a warning
};

}  // namespace finitude::signal
