// The inner loops of a scan, once per instruction set. Bits in, bits out; sense/scan.cpp gives them meaning.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace finitude::sense {

// Elements per block: small enough that a second look finds it in cache and that 16-bit counters cannot wrap.
inline constexpr std::size_t kBlock = 16 * 1024;

// What a full scan gathers. The order of finite values is recovered from three extremes of their codes: as
// unsigned numbers negative values sort above all others, the more negative the higher; as signed numbers the
// non-negative ones sort above all others; and where all have one sign, the least magnitude is the other end.
// So no float is compared, and nothing depends on flush-to-zero.
struct RawTotals {
  std::uint64_t umax = 0;         // finite codes only, zero-extended
  std::int64_t smax = INT64_MIN;  // the same codes, sign-extended
  std::uint64_t least_magnitude = UINT64_MAX;
  std::uint64_t zero = 0;
  std::uint64_t tiny = 0;  // zero or subnormal: exponent field 0
  std::uint64_t non_finite = 0, pos_inf = 0, neg_inf = 0;
  double sum_sq = 0;

  // A guess for the next block, from those before: tensors with some zeros mostly have them everywhere, those
  // of one sign mostly are of that sign throughout, and in all others the extremes are soon found.
  struct Expect {
    bool tiny = false;
    int calm = 0;  // blocks in a row whose magnitudes alone would have shown that they bring no new extreme
  } expect;
};

// Largest magnitude bits of n codes. May stop early at a block that holds one >= `stop`.
using QuickKernel = std::uint64_t (*)(const void* data, std::size_t n, std::uint64_t stop) noexcept;
using FullKernel = void (*)(const void* data, std::size_t n, RawTotals& totals) noexcept;
// As a quick kernel, and *sum_sq is the sum of the squares, where none is >= `stop`. Standard rounding and no traps.
using NormKernel = std::uint64_t (*)(const void* data, std::size_t n, std::uint64_t stop, double* sum_sq) noexcept;

struct Kernels {
  const char* isa;
  QuickKernel quick64, quick32, quick16, quick8;
  QuickKernel quick8_fnuz;  // the code 0x80 counts as 0x80, every other as its magnitude
  FullKernel full_float64, full_float32, full_float16, full_bfloat16;
  NormKernel norm_float64, norm_float32, norm_float16, norm_bfloat16;
};

// Plain C++, for machines without a vector unit we know and as the last fallback.
const Kernels& scalar_kernels() noexcept;

// The names of all that this build holds, "scalar" among them, whether or not this machine can run them.
std::span<const char* const> compiled_isas() noexcept;

// All that this build holds and this machine can run, best first; never empty.
std::span<const Kernels* const> available_kernels() noexcept;

// The best of them, or the one named (any case); an unknown or empty name gives the best.
const Kernels& choose_kernels(std::string_view forced) noexcept;

// choose_kernels(FINITUDE_FORCE_ISA), decided at the first call; after it a load, because a small tensor is
// scanned in the time of a few calls.
extern std::atomic<const Kernels*> chosen_kernels;
const Kernels& choose_kernels_now() noexcept;
inline const Kernels& kernels() noexcept {
  const Kernels* table = chosen_kernels.load(std::memory_order_acquire);
  return table != nullptr ? *table : choose_kernels_now();
}

}  // namespace finitude::sense
