// Threads of a program that each train a model: an operator of one is no part of a step of another.
#pragma once

#include <atomic>
#include <cstdint>

namespace finitude::observe {

// The number of this thread, where it takes steps of an optimizer; 0: it trains nothing, as a thread of autograd's.
inline constinit thread_local std::uint64_t training_thread = 0;
// Whose step is traced or taped; 0: that of the whole program. Set before the callbacks are.
inline std::atomic<std::uint64_t> traced_training{0};

// In callbacks: one relaxed load where the whole program is traced.
inline bool is_of_other_training() noexcept {
  const std::uint64_t traced = traced_training.load(std::memory_order_relaxed);
  return traced != 0 && training_thread != 0 && training_thread != traced;
}

}  // namespace finitude::observe
