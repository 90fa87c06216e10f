// All counts, extremes and the sum of squares, compiled once per instruction set (sense/kernels.cpp).
// No std templates in here, for the reason given in quick_kernel-inl.h.
#if defined(FINITUDE_SENSE_FULL_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FINITUDE_SENSE_FULL_KERNEL_INL_H_
#undef FINITUDE_SENSE_FULL_KERNEL_INL_H_
#else
#define FINITUDE_SENSE_FULL_KERNEL_INL_H_
#endif

#include "hwy/highway.h"
#include "sense/format.h"
#include "sense/kernels.h"
#include "sense/quick_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace finitude::sense::HWY_NAMESPACE {

struct Float64Lanes {
  using U = std::uint64_t;
  static constexpr BitFormat kFormat = kFloat64Format;
};
struct Float32Lanes {
  using U = std::uint32_t;
  static constexpr BitFormat kFormat = kFloat32Format;
};
struct Float16Lanes {
  using U = std::uint16_t;
  static constexpr BitFormat kFormat = kFloat16Format;
};
struct BFloat16Lanes {
  using U = std::uint16_t;
  static constexpr BitFormat kFormat = kBFloat16Format;
};

// How closely to look at a block. kFast: extremes and squares only; the extremes tell whether a zero, a
// subnormal or a non-finite value is there at all. kCount: also counts zeros and subnormals. kExclude: also
// counts non-finite values and keeps them out of everything else.
enum class Look { kFast, kCount, kExclude };

template <class D>
struct BlockState {
  using Signed = hn::RebindToSigned<D>;
  using Doubles = hn::Repartition<double, D>;
  hn::Vec<D> umax, zero, tiny, non_finite, pos_inf, neg_inf;
  hn::Vec<Signed> smax, least_magnitude;
  hn::Vec<Doubles> sums[4];

  HWY_INLINE BlockState() {
    const D d;
    umax = zero = tiny = non_finite = pos_inf = neg_inf = hn::Zero(d);
    smax = hn::Set(Signed(), hwy::LimitsMin<hn::TFromD<Signed>>());
    least_magnitude = hn::Set(Signed(), hwy::LimitsMax<hn::TFromD<Signed>>());
    for (auto& sum : sums) sum = hn::Zero(Doubles());
  }
};

template <class D>
HWY_INLINE hn::Vec<D> add_where(D d, hn::Vec<D> count, hn::Mask<D> mask) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return hn::IfThenElse(mask, hn::Add(count, hn::Set(d, 1)), count);  // becomes one masked add
#else
  return hn::Sub(count, hn::VecFromMask(d, mask));
#endif
}

// The lanes that hold a finite value, by bits.
template <class F, class D>
HWY_INLINE hn::Mask<D> is_finite(D d, hn::Vec<D> code) {
  const hn::RebindToSigned<D> di;
  using S = hn::TFromD<decltype(di)>;
  const auto magnitude = hn::And(hn::BitCast(di, code), hn::Set(di, hwy::LimitsMax<S>()));
  return hn::RebindMask(d, hn::Lt(magnitude, hn::Set(di, static_cast<S>(F::kFormat.exponent_mask()))));
}

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
template <class F, bool kMayBeBad, int kPhase, class D>
HWY_INLINE void add_squares_at(D d, const std::uint8_t* at, BlockState<D>& state) {
  const hn::Repartition<double, D> dd;
  constexpr std::size_t kPieces = sizeof(double) / sizeof(hn::TFromD<D>);
  const std::size_t piece_bytes = hn::Lanes(d) * sizeof(hn::TFromD<D>) / kPieces;
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    auto x = load_bytes(dd, at);
    if constexpr (kMayBeBad) {
      x = hn::IfThenElseZero(hn::RebindMask(dd, is_finite<F>(d, hn::BitCast(d, x))), x);
    }
    state.sums[kPhase] = hn::MulAdd(x, x, state.sums[kPhase]);
  } else if constexpr (sizeof(hn::TFromD<D>) == 4) {
    const hn::Rebind<float, decltype(dd)> df;
    for (std::size_t piece = 0; piece < kPieces; ++piece) {
      auto& sum = state.sums[kPieces * kPhase + piece];
      sum = add_squares<kMayBeBad>(dd, load_bytes(df, at + piece * piece_bytes), sum);
    }
  } else if constexpr (F::kFormat.mantissa_bits == kBFloat16Format.mantissa_bits) {
    // A bfloat16 is the upper half of a float32: odd elements by a mask, even ones by a shift.
    const hn::Rebind<std::uint32_t, decltype(dd)> du;
    const hn::Rebind<float, decltype(dd)> df;
    for (std::size_t piece = 0; piece < 2; ++piece) {
      const auto pairs = load_bytes(du, at + 2 * piece * piece_bytes);
      const auto odd = hn::BitCast(df, hn::And(pairs, hn::Set(du, 0xffff0000u)));
      const auto even = hn::BitCast(df, hn::ShiftLeft<16>(pairs));
      state.sums[2 * piece] = add_squares<kMayBeBad>(dd, odd, state.sums[2 * piece]);
      state.sums[2 * piece + 1] = add_squares<kMayBeBad>(dd, even, state.sums[2 * piece + 1]);
    }
  } else {
    // Left out before widening: where Highway emulates the conversion, it takes Inf and NaN for numbers.
    const hn::Rebind<std::uint16_t, decltype(dd)> du;
    const hn::Rebind<hwy::float16_t, decltype(dd)> dh;
    const hn::Rebind<float, decltype(dd)> df;
    for (std::size_t piece = 0; piece < kPieces; ++piece) {
      auto halves = load_bytes(du, at + piece * piece_bytes);
      if constexpr (kMayBeBad) halves = hn::IfThenElseZero(is_finite<F>(du, halves), halves);
      const auto x = hn::PromoteTo(df, hn::BitCast(dh, halves));
      state.sums[piece] = add_squares<false>(dd, x, state.sums[piece]);
    }
  }
}

template <class F, class D>
HWY_INLINE void count_tiny(D d, hn::Vec<D> code, BlockState<D>& state) {
  using U = hn::TFromD<D>;
  const auto magnitude_mask = hn::Set(d, static_cast<U>(F::kFormat.magnitude_mask()));
  const auto exponent_mask = hn::Set(d, static_cast<U>(F::kFormat.exponent_mask()));
  state.zero = add_where(d, state.zero, hn::Eq(hn::And(code, magnitude_mask), hn::Zero(d)));
  state.tiny = add_where(d, state.tiny, hn::Eq(hn::And(code, exponent_mask), hn::Zero(d)));
}

template <class F, Look kLook, int kPhase, class D>
HWY_INLINE void look(D d, const std::uint8_t* at, BlockState<D>& state) {
  using U = hn::TFromD<D>;
  const hn::RebindToSigned<D> di;
  const auto code = load_bytes(d, at);
  const auto magnitude_mask = hn::Set(d, static_cast<U>(F::kFormat.magnitude_mask()));
  const auto magnitude = hn::BitCast(di, hn::And(code, magnitude_mask));
  if constexpr (kLook != Look::kFast) count_tiny<F>(d, code, state);
  if constexpr (kLook == Look::kExclude) {
    const auto inf = hn::Set(d, static_cast<U>(F::kFormat.exponent_mask()));
    const auto sign = hn::Set(d, static_cast<U>(F::kFormat.sign_mask()));
    const auto is_good = is_finite<F>(d, code);
    const auto good = hn::VecFromMask(d, is_good);  // -1 where finite
    state.non_finite = hn::Add(state.non_finite, hn::Add(good, hn::Set(d, U{1})));
    state.pos_inf = add_where(d, state.pos_inf, hn::Eq(code, inf));
    state.neg_inf = add_where(d, state.neg_inf, hn::Eq(code, hn::Or(inf, sign)));
    state.umax = hn::Max(state.umax, hn::And(code, good));
    state.smax = hn::Max(state.smax, hn::BitCast(di, hn::IfThenElse(is_good, code, sign)));
    const auto kept = hn::Or(magnitude, hn::BitCast(di, hn::AndNot(good, magnitude_mask)));
    state.least_magnitude = hn::Min(state.least_magnitude, kept);
  } else {
    state.umax = hn::Max(state.umax, code);
    state.smax = hn::Max(state.smax, hn::BitCast(di, code));
    state.least_magnitude = hn::Min(state.least_magnitude, magnitude);
  }
  add_squares_at<F, kLook == Look::kExclude, kPhase>(d, at, state);
}

// All whole vectors of a block; returns how many elements that were.
template <class F, Look kLook, class D>
HWY_INLINE std::size_t look_at_block(D d, const std::uint8_t* bytes, std::size_t n, BlockState<D>& state) {
  const std::size_t lanes = hn::Lanes(d);
  constexpr std::size_t kSize = sizeof(hn::TFromD<D>);
  std::size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    look<F, kLook, 0>(d, bytes + i * kSize, state);
    look<F, kLook, 1>(d, bytes + (i + lanes) * kSize, state);
  }
  if (i + lanes <= n) {
    look<F, kLook, 0>(d, bytes + i * kSize, state);
    i += lanes;
  }
  return i;
}

template <class F, class D>
HWY_INLINE void count_tiny_in_block(D d, const std::uint8_t* bytes, std::size_t n, BlockState<D>& state) {
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t i = 0; i + lanes <= n; i += lanes) {
    count_tiny<F>(d, load_bytes(d, bytes + i * sizeof(hn::TFromD<D>)), state);
  }
}

// Without kExclude: does the largest positive or the largest negative code lie in the non-finite range?
template <class F, class D>
HWY_INLINE bool saw_non_finite(D d, const BlockState<D>& state) {
  using U = hn::TFromD<D>;
  const hn::RebindToSigned<D> di;
  using S = hn::TFromD<decltype(di)>;
  const auto positive = hn::Gt(state.smax, hn::Set(di, static_cast<S>(F::kFormat.exponent_mask() - 1)));
  const auto negative_inf = hn::Set(d, static_cast<U>(F::kFormat.exponent_mask() | F::kFormat.sign_mask()));
  const auto negative = hn::Eq(hn::Max(state.umax, negative_inf), state.umax);
  return !hn::AllFalse(d, hn::Or(hn::RebindMask(d, positive), negative));
}

template <class F, class D>
HWY_INLINE bool saw_tiny(D, const BlockState<D>& state) {
  const hn::RebindToSigned<D> di;
  using S = hn::TFromD<decltype(di)>;
  const auto least_normal = hn::Set(di, static_cast<S>(F::kFormat.mantissa_mask() + 1));
  return !hn::AllFalse(di, hn::Lt(state.least_magnitude, least_normal));
}

// Sums of counters cannot wrap: a block holds fewer elements than the narrowest lane can count.
template <class D>
HWY_INLINE std::uint64_t total(D d, hn::Vec<D> count) {
  return hn::GetLane(hn::SumOfLanes(d, count));
}

template <class F>
void full_kernel(const void* data, std::size_t n, RawTotals& totals) noexcept {
  using U = typename F::U;
  const hn::ScalableTag<U> d;
  using D = hn::ScalableTag<U>;
  const hn::RebindToSigned<D> di;
  const hn::Repartition<double, D> dd;
  const auto* bytes = static_cast<const std::uint8_t*>(data);
  const std::size_t lanes = hn::Lanes(d);
  bool expect_tiny = false;  // as in the block before: tensors with some zeros mostly have them everywhere
  while (n != 0) {
    const std::size_t block = HWY_MIN(n, kBlock);
    BlockState<D> state;
    std::size_t done = expect_tiny ? look_at_block<F, Look::kCount>(d, bytes, block, state)
                                   : look_at_block<F, Look::kFast>(d, bytes, block, state);
    if (HWY_UNLIKELY(saw_non_finite<F>(d, state))) {
      state = BlockState<D>();
      done = look_at_block<F, Look::kExclude>(d, bytes, block, state);
    } else {
      const bool tiny = saw_tiny<F>(d, state);
      if (tiny && !expect_tiny) count_tiny_in_block<F>(d, bytes, block, state);
      expect_tiny = tiny;
    }
    std::size_t padding = 0;
    if (done != block) {  // the last elements, filled up with NaN, which kExclude leaves out
      HWY_ALIGN std::uint8_t last[HWY_MAX_BYTES];
      padding = done + lanes - block;
      hn::StoreU(hn::BitCast(hn::Repartition<std::uint8_t, D>(), hn::Set(d, hwy::LimitsMax<U>())),
                 hn::Repartition<std::uint8_t, D>(), last);
      __builtin_memcpy(last, bytes + done * sizeof(U), (block - done) * sizeof(U));
      look<F, Look::kExclude, 0>(d, last, state);
    }
    const auto umax = static_cast<std::uint64_t>(hn::GetLane(hn::MaxOfLanes(d, state.umax)));
    const auto smax = static_cast<std::int64_t>(hn::GetLane(hn::MaxOfLanes(di, state.smax)));
    const auto least = static_cast<std::uint64_t>(hn::GetLane(hn::MinOfLanes(di, state.least_magnitude)));
    const std::uint64_t non_finite = total(d, state.non_finite) - padding;
    if (non_finite != block) {
      totals.umax = HWY_MAX(totals.umax, umax);
      totals.smax = HWY_MAX(totals.smax, smax);
      totals.least_magnitude = HWY_MIN(totals.least_magnitude, least);
    }
    totals.zero += total(d, state.zero);
    totals.tiny += total(d, state.tiny);
    totals.non_finite += non_finite;
    totals.pos_inf += total(d, state.pos_inf);
    totals.neg_inf += total(d, state.neg_inf);
    totals.sum_sq += hn::GetLane(hn::SumOfLanes(
        dd, hn::Add(hn::Add(state.sums[0], state.sums[1]), hn::Add(state.sums[2], state.sums[3]))));
    bytes += block * sizeof(U);
    n -= block;
  }
}

}  // namespace finitude::sense::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
