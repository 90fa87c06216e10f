// Largest magnitude by bits, compiled once per instruction set (sense/kernels.cpp).
// No std templates in here: an instance of one would be compiled for this instruction set and could be
// picked by the linker for code that runs everywhere.
#if defined(FINITUDE_SENSE_QUICK_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FINITUDE_SENSE_QUICK_KERNEL_INL_H_
#undef FINITUDE_SENSE_QUICK_KERNEL_INL_H_
#else
#define FINITUDE_SENSE_QUICK_KERNEL_INL_H_
#endif

#include "hwy/highway.h"
#include "sense/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace finitude::sense::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vectors are read as bytes, so that no alignment and no element type is claimed of the memory.
template <class D>
HWY_INLINE hn::Vec<D> load_bytes(D d, const std::uint8_t* at) {
  return hn::BitCast(d, hn::LoadU(hn::Repartition<std::uint8_t, D>(), at));
}

// Magnitudes of 16 to 64 bits are compared as signed lanes, which every instruction set has; 8-bit ones as
// unsigned, to leave room for 0x80, the NaN of the fnuz formats.
template <class D, bool kFnuz>
HWY_INLINE hn::Vec<D> magnitude(D d, hn::Vec<D> code) {
  using T = hn::TFromD<D>;
  const T mask = static_cast<T>(sizeof(T) == 1 ? 0x7f : hwy::LimitsMax<T>());
  const auto rank = hn::And(code, hn::Set(d, mask));
  if constexpr (kFnuz) {
    const auto nan = hn::Set(d, static_cast<T>(0x80));
    return hn::IfThenElse(hn::Eq(code, nan), nan, rank);
  } else {
    return rank;
  }
}

// Lanes of 8 and 16 bits are folded into 32-bit ones first: not every target reduces those.
template <class D, class V = hn::Vec<D>>
HWY_INLINE std::uint64_t reduce_max(D d, V v) {
  using T = hn::TFromD<D>;
  if constexpr (sizeof(T) == 1) {
    const hn::Repartition<std::uint16_t, D> d16;
    const auto pairs = hn::BitCast(d16, v);
    const auto most = hn::Max(hn::And(pairs, hn::Set(d16, 0xff)), hn::ShiftRight<8>(pairs));
    const hn::Repartition<std::int16_t, D> signed16;
    return reduce_max(signed16, hn::BitCast(signed16, most));
  } else if constexpr (sizeof(T) == 2) {
    const hn::Repartition<std::int32_t, D> d32;
    const auto pairs = hn::BitCast(d32, v);
    const auto most = hn::Max(hn::And(pairs, hn::Set(d32, 0xffff)), hn::ShiftRight<16>(pairs));
    return static_cast<std::uint64_t>(hn::GetLane(hn::MaxOfLanes(d32, most)));
  } else {
    return static_cast<std::uint64_t>(hn::GetLane(hn::MaxOfLanes(d, v)));
  }
}

// Hardware reads ahead only to the end of a page of 4 KB, and a loop that does next to nothing with what it
// loads comes to the next page before anything of that has been asked for. So each step asks for one line of
// a page farther on, into L2: the first quarter of that page by the time this one is done, after which the
// hardware has caught on.
inline constexpr std::size_t kPage = 4096, kAhead = 4 * kPage;  // bytes
inline constexpr std::size_t kLeastAhead = 256 << 10;           // fewer bytes than that may well lie in L2

// `at`: where a loop is that takes at most kPage / 16 bytes a step. The line asked for lies less than
// kAhead + kPage beyond. Reckoned in integers: the beginning of the page may lie before the data, and C++ has
// no pointer to there. Asking reads nothing, so that it cannot fault wherever it points.
HWY_INLINE void ask_ahead(const std::uint8_t* at) {
  const auto address = reinterpret_cast<std::uintptr_t>(at), in_page = address % kPage;
  __builtin_prefetch(reinterpret_cast<const void*>(address - in_page + kAhead + in_page / 4), 0, 2);
}

// So many steps of four vectors, each vector of a step into its own maxima.
template <class D, bool kFnuz, bool kAskAhead>
HWY_INLINE void quick_steps(D d, const std::uint8_t* at, std::size_t steps, hn::Vec<D>& a, hn::Vec<D>& b, hn::Vec<D>& c,
                            hn::Vec<D>& e) {
  const std::size_t vector = hn::Lanes(d) * sizeof(hn::TFromD<D>);
  for (; steps != 0; --steps, at += 4 * vector) {
    if constexpr (kAskAhead) ask_ahead(at);
    a = hn::Max(a, magnitude<D, kFnuz>(d, load_bytes(d, at)));
    b = hn::Max(b, magnitude<D, kFnuz>(d, load_bytes(d, at + vector)));
    c = hn::Max(c, magnitude<D, kFnuz>(d, load_bytes(d, at + 2 * vector)));
    e = hn::Max(e, magnitude<D, kFnuz>(d, load_bytes(d, at + 3 * vector)));
  }
}

// n >= Lanes(d). The last vector overlaps the one before: a maximum may look twice.
template <class D, bool kFnuz>
HWY_INLINE std::uint64_t quick_vectors(D d, const std::uint8_t* bytes, std::size_t n, std::uint64_t stop) {
  using T = hn::TFromD<D>;
  const std::size_t lanes = hn::Lanes(d);
  const auto at = [bytes](std::size_t index) HWY_ATTR { return bytes + index * sizeof(T); };
  auto a = hn::Zero(d), b = a, c = a, e = a;
  std::size_t i = 0;
  // Nothing beyond the data is asked for.
  const std::size_t ahead = n >= kLeastAhead / sizeof(T) ? n - (kAhead + kPage) / sizeof(T) : 0;
  while (n - i >= 4 * lanes) {
    std::size_t steps = HWY_MIN(n - i, kBlock) / (4 * lanes);
    if (HWY_UNLIKELY(i < ahead)) {
      const std::size_t first = HWY_MIN(steps, (ahead - i) / (4 * lanes));
      quick_steps<D, kFnuz, true>(d, at(i), first, a, b, c, e);
      i += first * 4 * lanes;
      steps -= first;
    }
    quick_steps<D, kFnuz, false>(d, at(i), steps, a, b, c, e);
    i += steps * 4 * lanes;
    a = hn::Max(hn::Max(a, b), hn::Max(c, e));
    if (n - i >= 4 * lanes && reduce_max(d, a) >= stop) break;
  }
  if (n - i >= 4 * lanes) return reduce_max(d, a);
  for (; i + lanes <= n; i += lanes) a = hn::Max(a, magnitude<D, kFnuz>(d, load_bytes(d, at(i))));
  if (i != n) a = hn::Max(a, magnitude<D, kFnuz>(d, load_bytes(d, at(n - lanes))));
  return reduce_max(d, a);
}

template <typename T, bool kFnuz = false>
std::uint64_t quick_kernel(const void* data, std::size_t n, std::uint64_t stop) noexcept {
  const auto* bytes = static_cast<const std::uint8_t*>(data);
  const hn::ScalableTag<T> d;
  if (HWY_LIKELY(n >= hn::Lanes(d))) return quick_vectors<decltype(d), kFnuz>(d, bytes, n, stop);
  const hn::CappedTag<T, 16 / sizeof(T)> small;
  if (n >= hn::Lanes(small)) return quick_vectors<decltype(small), kFnuz>(small, bytes, n, stop);
  using U = hwy::MakeUnsigned<T>;
  constexpr U kSign = static_cast<U>(U{1} << (8 * sizeof(U) - 1));
  U most = 0;
  for (std::size_t i = 0; i < n; ++i) {
    U code;
    hwy::CopyBytes<sizeof(U)>(bytes + i * sizeof(U), &code);
    const U rank = kFnuz && code == kSign ? kSign : static_cast<U>(code & static_cast<U>(kSign - 1));
    most = rank > most ? rank : most;
  }
  return most;
}

}  // namespace finitude::sense::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
