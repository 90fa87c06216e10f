#include "replay/play_deadline.h"

#include <utility>

namespace finitude::replay {
namespace {

std::optional<PlayDeadline::Clock::time_point>& deadline() noexcept {
  thread_local std::optional<PlayDeadline::Clock::time_point> at;
  return at;
}

}  // namespace

PlayDeadline::PlayDeadline(Clock::time_point at) noexcept : outer_(std::exchange(deadline(), at)) {}
PlayDeadline::~PlayDeadline() { deadline() = outer_; }
bool PlayDeadline::has_passed() noexcept { return deadline().has_value() && Clock::now() >= *deadline(); }

}  // namespace finitude::replay
