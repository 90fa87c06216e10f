#include "sense/cpu_posix.h"

#include <cstdint>
#include <initializer_list>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace finitude::sense {
namespace {

#if defined(__x86_64__) || defined(__i386__)

constexpr bool has(std::uint32_t word, std::initializer_list<int> bits) noexcept {
  for (const int bit : bits) {
    if ((word >> bit & 1) == 0) return false;
  }
  return true;
}

// XCR0: the registers that the system saves when it switches threads. Only where CPUID reports OSXSAVE.
std::uint32_t kept_registers() noexcept {
  std::uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

// The bit numbers are those of Intel's manual, volume 2A, CPUID.
Cpu ask() noexcept {
  Cpu found;
  std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return found;
  const std::uint32_t basic = ecx;
  const std::uint32_t kept = has(basic, {27}) ? kept_registers() : 0;
  // SSE3, PCLMULQDQ, SSSE3, SSE4.1, SSE4.2, AES. FXSAVE keeps their registers, too: where XSAVE is off, nothing is
  // asked.
  found.sse4 = has(basic, {0, 1, 9, 19, 20, 25}) && (!has(basic, {27}) || has(kept, {1}));

  std::uint32_t extended = 0, more = 0;
  if (!__get_cpuid(0x80000001, &eax, &ebx, &extended, &edx) || !__get_cpuid_count(7, 0, &eax, &more, &ecx, &edx)) {
    return found;
  }
  // FMA, AVX, F16C; BMI, AVX2, BMI2; LZCNT; the registers of SSE and AVX
  found.avx2 =
      found.sse4 && has(basic, {12, 28, 29}) && has(more, {3, 5, 8}) && has(extended, {5}) && has(kept, {1, 2});
  // F, DQ, BW, VL; masks and both halves of the registers
  found.avx3 = found.avx2 && has(more, {16, 17, 30, 31}) && has(kept, {5, 6, 7});
  return found;
}

#elif defined(__aarch64__) && defined(__linux__)

Cpu ask() noexcept {
  const unsigned long has = getauxval(AT_HWCAP);
  constexpr unsigned long kSimd = 1ul << 1, kAes = 1ul << 3;  // HWCAP_ASIMD, HWCAP_AES of asm/hwcap.h
  Cpu found;
  found.neon = (has & kSimd) != 0 && (has & kAes) != 0;
  return found;
}

#else

Cpu ask() noexcept { return {}; }

#endif

}  // namespace

const Cpu& cpu() noexcept {
  static const Cpu found = ask();
  return found;
}

}  // namespace finitude::sense
