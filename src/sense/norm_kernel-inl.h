// Largest magnitude by bits and the sum of squares, in one reading of the memory, compiled once per instruction set
// (sense/kernels.cpp). The quick kernel with one multiply-add for each vector: squares of float32 and of 16-bit formats
// are added in float32, 16 of them at most, before they are widened.
// No std templates in here, for the reason given in quick_kernel-inl.h.
#if defined(FINITUDE_SENSE_NORM_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FINITUDE_SENSE_NORM_KERNEL_INL_H_
#undef FINITUDE_SENSE_NORM_KERNEL_INL_H_
#else
#define FINITUDE_SENSE_NORM_KERNEL_INL_H_
#endif

#include "hwy/highway.h"
#include "sense/full_kernel-inl.h"
#include "sense/quick_kernel-inl.h"
#include "sense/squares-inl.h"

HWY_BEFORE_NAMESPACE();
namespace finitude::sense::HWY_NAMESPACE {

inline constexpr std::size_t kNormBlockBytes = 16 * 1024;  // a second look finds it in L1

// Whether float32 held the squares of a block with this largest magnitude: none of 16 together overflows, and what is
// lost of the small ones is below 2^-30 of the sum, also where subnormals are flushed.
template <class F>
HWY_INLINE bool norm_sums_hold(std::uint64_t most) {
  if constexpr (F::kFormat.mantissa_bits == kFloat32Format.mantissa_bits) {
    constexpr auto code = [](int exponent) HWY_ATTR {
      return static_cast<std::uint64_t>(exponent + F::kFormat.bias) << F::kFormat.mantissa_bits;
    };
    return most == 0 || (most >= code(-40) && most < code(60));
  } else if constexpr (sizeof(typename F::U) == 2) {
    return near_sums_hold<F>(most);
  } else {
    return true;  // float64: see scale_of in norm_scan.h
  }
}

// Takes one vector of codes into a sum of float32.
template <class F, int kPhase, class D>
HWY_INLINE void add_to_near(D d, const std::uint8_t* at, hn::Vec<D> code, NearSums<D>& near_sums) {
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    const hn::Repartition<float, D> df;
    const auto x = hn::BitCast(df, code);
    near_sums.of[kPhase] = hn::MulAdd(x, x, near_sums.of[kPhase]);
  } else {
    add_near<F, kPhase>(d, at, code, near_sums);
  }
}

// So many vectors, taken in groups whose squares are widened together. `most`: four maxima.
template <class F, bool kAskAhead, class D, class DD>
HWY_INLINE void norm_vectors(D d, DD dd, const std::uint8_t* at, std::size_t vectors, hn::Vec<D> (&most)[4],
                             Sums<DD>& sums) {
  using T = hn::TFromD<D>;
  const std::size_t bytes = hn::Lanes(d) * sizeof(T);
  const auto take = [d](const std::uint8_t* from, hn::Vec<D>& largest) HWY_ATTR {
    const auto code = load_bytes(d, from);
    largest = hn::Max(largest, magnitude<D, false>(d, code));
    return code;
  };
  if constexpr (sizeof(T) == 8) {
    for (; vectors >= 4; vectors -= 4, at += 4 * bytes) {
      if constexpr (kAskAhead) ask_ahead(at);
      const auto a = hn::BitCast(dd, take(at, most[0])), b = hn::BitCast(dd, take(at + bytes, most[1]));
      const auto c = hn::BitCast(dd, take(at + 2 * bytes, most[2])), e = hn::BitCast(dd, take(at + 3 * bytes, most[3]));
      sums.of[0] = hn::MulAdd(a, a, sums.of[0]);
      sums.of[1] = hn::MulAdd(b, b, sums.of[1]);
      sums.of[2] = hn::MulAdd(c, c, sums.of[2]);
      sums.of[3] = hn::MulAdd(e, e, sums.of[3]);
    }
    for (; vectors != 0; --vectors, at += bytes) {
      const auto x = hn::BitCast(dd, take(at, most[0]));
      sums.of[0] = hn::MulAdd(x, x, sums.of[0]);
    }
  } else {
    constexpr std::size_t kGroup = sizeof(T) == 4 ? 64 : kTogether;
    while (vectors >= 4) {
      NearSums<D> near_sums;
      const std::size_t steps = HWY_MIN(vectors, kGroup) / 4;
      for (std::size_t step = 0; step < steps; ++step, at += 4 * bytes) {
        if constexpr (kAskAhead) ask_ahead(at);
        add_to_near<F, 0>(d, at, take(at, most[0]), near_sums);
        add_to_near<F, 1>(d, at + bytes, take(at + bytes, most[1]), near_sums);
        add_to_near<F, 2>(d, at + 2 * bytes, take(at + 2 * bytes, most[2]), near_sums);
        add_to_near<F, 3>(d, at + 3 * bytes, take(at + 3 * bytes, most[3]), near_sums);
      }
      near_sums.add_to(sums);
      vectors -= 4 * steps;
    }
    NearSums<D> near_sums;
    for (; vectors != 0; --vectors, at += bytes) add_to_near<F, 0>(d, at, take(at, most[0]), near_sums);
    near_sums.add_to(sums);
  }
}

// Returns as a quick kernel does. *sum_sq: where every value is finite; of float64 it may overflow or vanish.
template <class F>
std::uint64_t norm_kernel(const void* data, std::size_t n, std::uint64_t stop, double* sum_sq) noexcept {
  using T = hwy::MakeSigned<typename F::U>;
  const hn::ScalableTag<T> d;
  using D = decltype(d);
  const hn::Repartition<double, D> dd;
  const std::size_t lanes = hn::Lanes(d);
  constexpr std::size_t kElements = kNormBlockBytes / sizeof(T);  // of a block: whole groups of vectors
  const auto* at = static_cast<const std::uint8_t*>(data);
  const bool asks = n >= kLeastAhead / sizeof(T);
  std::uint64_t largest = 0;
  double sum = 0;
  while (n != 0) {
    const std::size_t count = HWY_MIN(n, kElements), vectors = count / lanes, rest = count - vectors * lanes;
    hn::Vec<D> most[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    Sums<hn::Repartition<double, D>> sums;
    // Nothing beyond the data is asked for.
    if (asks && n > kElements + (kAhead + kPage) / sizeof(T))
      norm_vectors<F, true>(d, dd, at, vectors, most, sums);
    else
      norm_vectors<F, false>(d, dd, at, vectors, most, sums);
    if (rest != 0) {
      alignas(HWY_MAX_BYTES) std::uint8_t padded[HWY_MAX_BYTES] = {};
      __builtin_memcpy(padded, at + vectors * lanes * sizeof(T), rest * sizeof(T));
      norm_vectors<F, false>(d, dd, padded, 1, most, sums);
    }
    const std::uint64_t of_block = reduce_max(d, hn::Max(hn::Max(most[0], most[1]), hn::Max(most[2], most[3])));
    largest = of_block > largest ? of_block : largest;
    if (of_block >= stop) break;
    if (HWY_LIKELY(norm_sums_hold<F>(of_block))) {
      sum += sums.total();
    } else {
      RawTotals totals;
      full_kernel<F>(at, count, totals);
      sum += totals.sum_sq;
    }
    at += count * sizeof(T);
    n -= count;
  }
  *sum_sq = sum;
  return largest;
}

}  // namespace finitude::sense::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
