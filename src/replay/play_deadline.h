// When the replays of this thread have to end. What they are for (experiments beside a program that waits) has a
// budget.
#pragma once

#include <chrono>
#include <optional>

namespace finitude::replay {

class PlayDeadline {
 public:
  using Clock = std::chrono::steady_clock;

  explicit PlayDeadline(Clock::time_point at) noexcept;
  ~PlayDeadline();
  PlayDeadline(const PlayDeadline&) = delete;
  PlayDeadline& operator=(const PlayDeadline&) = delete;

  // Asked before each call of a replay.
  static bool has_passed() noexcept;
  static constexpr const char* kWhy = "the time for experiments was up";

 private:
  std::optional<Clock::time_point> outer_;
};

}  // namespace finitude::replay
