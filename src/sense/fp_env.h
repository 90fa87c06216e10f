// Standard floating-point arithmetic for the length of a scope, whatever the host has set.
#pragma once

#if defined(__x86_64__) || defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include <cstdint>

namespace finitude::sense {

// torch.set_flush_denormal and feenableexcept change the thread's control register: with DAZ a float32
// subnormal converts to 0, with unmasked traps a signalling NaN kills the process. Inside this scope
// rounding is to nearest, nothing is flushed and nothing traps; on leaving, the host's register is back
// as it was, sticky flags included.
class StandardFpEnv {
 public:
#if defined(__x86_64__) || defined(__SSE2__)
  StandardFpEnv() noexcept : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~StandardFpEnv() { _mm_setcsr(static_cast<unsigned>(saved_)); }
#elif defined(__aarch64__)
  StandardFpEnv() noexcept {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("mrs %0, fpsr" : "=r"(flags_));
    asm volatile("msr fpcr, %0" : : "r"(std::uint64_t{0}) : "memory");
  }
  ~StandardFpEnv() {
    asm volatile("msr fpcr, %0" : : "r"(saved_) : "memory");
    asm volatile("msr fpsr, %0" : : "r"(flags_) : "memory");
  }
#else
  StandardFpEnv() noexcept {}
  ~StandardFpEnv() {}
#endif
  StandardFpEnv(const StandardFpEnv&) = delete;
  StandardFpEnv& operator=(const StandardFpEnv&) = delete;

 private:
  [[maybe_unused]] std::uint64_t saved_ = 0;
  [[maybe_unused]] std::uint64_t flags_ = 0;
};

}  // namespace finitude::sense
