// Processor time that the calling thread has used: on a busy machine a piece of work is interrupted for longer than it
// takes.
#pragma once

#include <time.h>

#include <chrono>

namespace finitude::base {

inline std::chrono::nanoseconds thread_time() noexcept {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec);
}

}  // namespace finitude::base
