#include "sense/plain_read.h"

#include "sense/targets-inl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sense/plain_read.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace finitude::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// How memory is asked for before it is read: not at all; each line so many bytes ahead; or, at each step, one
// line of the page four pages ahead, from its beginning (what sets the hardware going, see
// src/sense/quick_kernel-inl.h).
enum class Ahead { kNone, kLines, kPages };

// Exclusive or has no latency to speak of and needs no instruction of its own to load: one instruction for
// each vector. kChains: independent sums.
template <class D, int kChains, Ahead kAhead>
std::uint64_t read_all(const void* data, std::size_t bytes) {
  const D d;
  const auto* at = static_cast<const std::uint8_t*>(data);
  const std::size_t vector = hn::Lanes(d) * sizeof(hn::TFromD<D>);
  const auto load = [d](const std::uint8_t* from)
                        HWY_ATTR { return hn::LoadU(d, reinterpret_cast<const hn::TFromD<D>*>(from)); };
  hn::Vec<D> sums[kChains];
#pragma GCC unroll 16
  for (int i = 0; i < kChains; ++i) sums[i] = hn::Zero(d);
  for (; bytes >= kChains * vector; bytes -= kChains * vector, at += kChains * vector) {
    // What is asked for may lie beyond the memory, where C++ has no pointers: addresses are integers.
    [[maybe_unused]] const auto address = reinterpret_cast<std::uintptr_t>(at);
    if constexpr (kAhead == Ahead::kLines) {
#pragma GCC unroll 16
      for (std::size_t line = 0; line < kChains * vector; line += 64)
        __builtin_prefetch(reinterpret_cast<const void*>(address + 1024 + line), 0, 3);
    } else if constexpr (kAhead == Ahead::kPages) {
      const std::uintptr_t in_page = address % 4096;
      __builtin_prefetch(reinterpret_cast<const void*>(address - in_page + 4 * 4096 + in_page / 4), 0, 2);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) sums[i] = hn::Xor(sums[i], load(at + static_cast<std::size_t>(i) * vector));
  }
  for (; bytes >= vector; bytes -= vector, at += vector) sums[0] = hn::Xor(sums[0], load(at));
#pragma GCC unroll 16
  for (int i = 1; i < kChains; ++i) sums[0] = hn::Xor(sums[0], sums[i]);
  std::uint64_t rest = 0;
  for (std::size_t i = 0; i < bytes; ++i) rest ^= at[i];
  return rest ^ hn::GetLane(hn::SumOfLanes(d, sums[0]));
}

std::span<const ReadVariant> variants_of_target() {
  using Widest = hn::ScalableTag<std::uint64_t>;
  using Narrow = hn::CappedTag<std::uint64_t, 4>;
  static const ReadVariant kVariants[] = {
      {"4", read_all<Widest, 4, Ahead::kNone>},        {"8", read_all<Widest, 8, Ahead::kNone>},
      {"8-ahead", read_all<Widest, 8, Ahead::kLines>}, {"narrow-8", read_all<Narrow, 8, Ahead::kNone>},
      {"4-pages", read_all<Widest, 4, Ahead::kPages>}, {"narrow-8-pages", read_all<Narrow, 8, Ahead::kPages>},
  };
  return kVariants;
}

}  // namespace finitude::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace finitude::bench {
namespace {
constexpr sense::OfTarget<std::span<const ReadVariant>()> kTargets[] = FINITUDE_OF_TARGETS(variants_of_target);
}

std::span<const ReadVariant> read_variants() { return sense::best_of(kTargets)(); }

}  // namespace finitude::bench
#endif
