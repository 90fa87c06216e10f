// The sum of squares of a block in float64, compiled once per instruction set (sense/kernels.cpp).
// No std templates in here, for the reason given in quick_kernel-inl.h.
#if defined(FINITUDE_SENSE_SQUARES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FINITUDE_SENSE_SQUARES_INL_H_
#undef FINITUDE_SENSE_SQUARES_INL_H_
#else
#define FINITUDE_SENSE_SQUARES_INL_H_
#endif

#include "hwy/highway.h"
#include "sense/format.h"
#include "sense/kernels.h"
#include "sense/quick_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace finitude::sense::HWY_NAMESPACE {

// What a kernel knows of a format. kSquares: whether squares are summed at all; a benchmark leaves them out
// to see what they cost.
template <class Unsigned, const BitFormat& kBits>
struct FormatLanes {
  using U = Unsigned;
  static constexpr BitFormat kFormat = kBits;
  static constexpr bool kSquares = true;
};
using Float64Lanes = FormatLanes<std::uint64_t, kFloat64Format>;
using Float32Lanes = FormatLanes<std::uint32_t, kFloat32Format>;
using Float16Lanes = FormatLanes<std::uint16_t, kFloat16Format>;
using BFloat16Lanes = FormatLanes<std::uint16_t, kBFloat16Format>;

// The lanes that hold a finite value, by bits.
template <class F, class D>
HWY_INLINE hn::Mask<D> is_finite(D d, hn::Vec<D> code) {
  const hn::RebindToSigned<D> di;
  using S = hn::TFromD<decltype(di)>;
  const auto magnitude = hn::And(hn::BitCast(di, code), hn::Set(di, hwy::LimitsMax<S>()));
  return hn::RebindMask(d, hn::Lt(magnitude, hn::Set(di, static_cast<S>(F::kFormat.exponent_mask()))));
}

// Sums are spread over independent ones: enough for two fused multiply-adds a cycle, each of which takes
// four; with 16 registers there is room for half of it.
inline constexpr int kSums = HWY_TARGET == HWY_AVX3 ? 8 : 4;

template <class DD>
struct Sums {
  hn::Vec<DD> of[kSums];

  HWY_INLINE Sums() {
    for (auto& sum : of) sum = hn::Zero(DD());
  }
  HWY_INLINE double total() const {
    auto sum = hn::Add(hn::Add(of[0], of[1]), hn::Add(of[2], of[3]));
    if constexpr (kSums == 8) sum = hn::Add(sum, hn::Add(hn::Add(of[4], of[5]), hn::Add(of[6], of[7])));
    return hn::GetLane(hn::SumOfLanes(DD(), sum));
  }
};

// By conversion to float64, which is exact, in vectors of at most this many bytes. Zen 4 converts 32 bytes of
// float32 in a good deal less than half the time of 64; 16-bit formats take registers apart before they
// convert, and are better off with fewer. Putting the float64 together from the bits instead (a shift, then
// mask and bias by ternary logic) is no faster there: it keeps the same four pipes busy for as long.
template <class U>
inline constexpr std::size_t kConvertBytes = HWY_TARGET == HWY_AVX3 && sizeof(U) == 4 ? 32 : HWY_MAX_BYTES;

template <class D>
using ConvertTag = hn::CappedTag<double, HWY_MIN(kConvertBytes<hn::TFromD<D>>, HWY_MAX_BYTES) / sizeof(double)>;

// sum += x * x of float32 lanes, widened to float64.
template <bool kMayBeBad, class DD>
HWY_INLINE hn::Vec<DD> add_squares(DD dd, hn::Vec<hn::Rebind<float, DD>> x, hn::Vec<DD> sum) {
  if constexpr (kMayBeBad) {
    const hn::Rebind<float, DD> df;
    const hn::Rebind<std::uint32_t, DD> du;
    x = hn::IfThenElseZero(hn::RebindMask(df, is_finite<Float32Lanes>(du, hn::BitCast(du, x))), x);
  }
  const auto wide = hn::PromoteTo(dd, x);
  return hn::MulAdd(wide, wide, sum);
}

// The squares of one vector of codes. They are read again, in pieces that widen to whole vectors of float64:
// a load from L1 is cheaper than taking a register apart. kPhase spreads them over independent sums.
// kMayBeBad skips what is not finite.
template <class F, bool kMayBeBad, int kPhase, class D>
HWY_INLINE void add_squares_at(D d, const std::uint8_t* at, Sums<ConvertTag<D>>& sums) {
  using U = hn::TFromD<D>;
  const ConvertTag<D> dd;
  // Elements in a vector of float64; pieces of that many in a vector of codes.
  const std::size_t wide = hn::Lanes(dd), piece_bytes = wide * sizeof(U);
  constexpr std::size_t kPieces = hn::MaxLanes(D()) / hn::MaxLanes(ConvertTag<D>());
  if constexpr (sizeof(U) == 8) {
    auto x = load_bytes(dd, at);
    if constexpr (kMayBeBad) {
      x = hn::IfThenElseZero(hn::RebindMask(dd, is_finite<F>(d, hn::BitCast(d, x))), x);
    }
    sums.of[kPhase] = hn::MulAdd(x, x, sums.of[kPhase]);
  } else if constexpr (sizeof(U) == 4) {
    const hn::Rebind<float, decltype(dd)> df;
#pragma GCC unroll 8
    for (std::size_t piece = 0; piece < kPieces; ++piece) {
      auto& sum = sums.of[(kPieces * kPhase + piece) % kSums];
      sum = add_squares<kMayBeBad>(dd, load_bytes(df, at + piece * piece_bytes), sum);
    }
  } else if constexpr (F::kFormat.mantissa_bits == kBFloat16Format.mantissa_bits) {
    // A bfloat16 is the upper half of a float32: odd elements by a mask, even ones by a shift.
    const hn::Rebind<std::uint32_t, decltype(dd)> du;
    const hn::Rebind<float, decltype(dd)> df;
#pragma GCC unroll 8
    for (std::size_t piece = 0; piece < kPieces; piece += 2) {
      const auto pairs = load_bytes(du, at + piece * piece_bytes);
      const auto odd = hn::BitCast(df, hn::And(pairs, hn::Set(du, 0xffff0000u)));
      const auto even = hn::BitCast(df, hn::ShiftLeft<16>(pairs));
      auto& odd_sum = sums.of[(kPieces * kPhase + piece) % kSums];
      auto& even_sum = sums.of[(kPieces * kPhase + piece + 1) % kSums];
      odd_sum = add_squares<kMayBeBad>(dd, odd, odd_sum);
      even_sum = add_squares<kMayBeBad>(dd, even, even_sum);
    }
  } else {
    // Removed before widening: where Highway emulates the conversion, it takes Inf and NaN for numbers.
    const hn::Rebind<std::uint16_t, decltype(dd)> du;
    const hn::Rebind<hwy::float16_t, decltype(dd)> dh;
    const hn::Rebind<float, decltype(dd)> df;
#pragma GCC unroll 8
    for (std::size_t piece = 0; piece < kPieces; ++piece) {
      auto halves = load_bytes(du, at + piece * piece_bytes);
      if constexpr (kMayBeBad) halves = hn::IfThenElseZero(is_finite<F>(du, halves), halves);
      const auto x = hn::PromoteTo(df, hn::BitCast(dh, halves));
      auto& sum = sums.of[(kPieces * kPhase + piece) % kSums];
      sum = add_squares<false>(dd, x, sum);
    }
  }
}

// Of 16-bit formats, squares are exact in float32 (they have at most 22 bits), and kTogether vectors of codes
// are added up there before they are widened to float64, because every conversion costs as much as the rest
// of the look at that vector. In four sums: sixteen squares are rounded five times on the way to one, which
// is 2^-21 of the result at most.
inline constexpr std::size_t kTogether = 8;

template <class D>
struct NearSums {
  using DF = hn::Repartition<float, D>;
  hn::Vec<DF> of[4];

  HWY_INLINE NearSums() {
    for (auto& sum : of) sum = hn::Zero(DF());
  }
  template <class DD>
  HWY_INLINE void add_to(Sums<DD>& sums) const {
    const hn::Half<DF> half;
    const hn::Repartition<double, DF> dd;
    const auto sum = hn::Add(hn::Add(of[0], of[1]), hn::Add(of[2], of[3]));
    sums.of[0] = hn::Add(sums.of[0], hn::PromoteTo(dd, hn::LowerHalf(half, sum)));
    sums.of[1] = hn::Add(sums.of[1], hn::PromoteTo(dd, hn::UpperHalf(half, sum)));
  }
};

// Whether float32 held them all, where this is the largest magnitude of a block: none has overflowed, and
// what was lost of those below the least normal float32 is below 2^-30 of the sum. Float16 is never that far
// out.
template <class F>
HWY_INLINE bool near_sums_hold(std::uint64_t most) {
  if constexpr (F::kFormat.mantissa_bits != kBFloat16Format.mantissa_bits) return true;
  constexpr auto code = [](int exponent) HWY_ATTR {
    return static_cast<std::uint64_t>(exponent + F::kFormat.bias) << F::kFormat.mantissa_bits;
  };
  return most == 0 || (most >= code(-50) && most < code(61));
}

// The squares of one vector of finite codes, the kPhase-th of those that are added together.
template <class F, int kPhase, class D>
HWY_INLINE void add_near(D d, const std::uint8_t* at, hn::Vec<D> code, NearSums<D>& sums) {
  const hn::Repartition<float, D> df;
  hn::Vec<decltype(df)> x, y;
  if constexpr (F::kFormat.mantissa_bits == kBFloat16Format.mantissa_bits) {
    const hn::Repartition<std::uint32_t, D> du;
    const auto pairs = hn::BitCast(du, code);
    x = hn::BitCast(df, hn::And(pairs, hn::Set(du, 0xffff0000u)));
    y = hn::BitCast(df, hn::ShiftLeft<16>(pairs));
  } else {
    const hn::Rebind<hwy::float16_t, decltype(df)> dh;
    const hn::Rebind<std::uint16_t, decltype(df)> du;
    x = hn::PromoteTo(df, hn::BitCast(dh, load_bytes(du, at)));
    y = hn::PromoteTo(df, hn::BitCast(dh, load_bytes(du, at + hn::Lanes(df) * sizeof(std::uint16_t))));
  }
  auto& x_sum = sums.of[2 * kPhase % 4];
  auto& y_sum = sums.of[(2 * kPhase + 1) % 4];
  x_sum = hn::MulAdd(x, x, x_sum);
  y_sum = hn::MulAdd(y, y, y_sum);
}

}  // namespace finitude::sense::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
