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

// What is found out about a block while it is read, each with the squares.
struct Magnitudes {  // the largest and the least magnitude: enough to see that nothing else is worth knowing
  static constexpr bool kSigned = false, kCount = false, kExclude = false;
};
struct Extremes {  // also the largest code of each sign
  static constexpr bool kSigned = true, kCount = false, kExclude = false;
};
struct CountingMagnitudes {  // also how many zeros and subnormals
  static constexpr bool kSigned = false, kCount = true, kExclude = false;
};
struct CountingExtremes {
  static constexpr bool kSigned = true, kCount = true, kExclude = false;
};
struct Everything {  // counts non-finite values and keeps them out of all the rest
  static constexpr bool kSigned = true, kCount = true, kExclude = true;
};

// Squares are summed in vectors of at most this many bytes. Zen 4 converts 32 bytes of float32 in a good deal
// less than half the time of 64; 16-bit formats take registers apart before they convert, and are better off
// with fewer of those.
template <class U>
inline constexpr std::size_t kSquareBytes = HWY_TARGET == HWY_AVX3 && sizeof(U) == 4 ? 32 : HWY_MAX_BYTES;

template <class D>
using SquareTag = hn::CappedTag<double, HWY_MIN(kSquareBytes<hn::TFromD<D>>, HWY_MAX_BYTES) / sizeof(double)>;

template <class D>
struct BlockState {
  using Signed = hn::RebindToSigned<D>;
  using Doubles = SquareTag<D>;
  // Enough for two fused multiply-adds a cycle, each of which takes four; with 16 registers there is room for
  // half of it.
  static constexpr int kSums = HWY_TARGET == HWY_AVX3 ? 8 : 4;
  hn::Vec<D> umax, zero, tiny, non_finite, pos_inf, neg_inf;
  hn::Vec<Signed> smax, least_magnitude, most_magnitude;
  hn::Vec<Doubles> sums[kSums];

  HWY_INLINE BlockState() {
    const D d;
    umax = zero = tiny = non_finite = pos_inf = neg_inf = hn::Zero(d);
    smax = hn::Set(Signed(), hwy::LimitsMin<hn::TFromD<Signed>>());
    least_magnitude = hn::Set(Signed(), hwy::LimitsMax<hn::TFromD<Signed>>());
    most_magnitude = hn::Zero(Signed());
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
  using State = BlockState<D>;
  using U = hn::TFromD<D>;
  const SquareTag<D> dd;
  // Elements in a vector of float64; pieces of that many in a vector of codes.
  const std::size_t wide = hn::Lanes(dd), piece_bytes = wide * sizeof(U);
  constexpr std::size_t kPieces = hn::MaxLanes(D()) / hn::MaxLanes(SquareTag<D>());
  if constexpr (sizeof(U) == 8) {
    auto x = load_bytes(dd, at);
    if constexpr (kMayBeBad) {
      x = hn::IfThenElseZero(hn::RebindMask(dd, is_finite<F>(d, hn::BitCast(d, x))), x);
    }
    state.sums[kPhase] = hn::MulAdd(x, x, state.sums[kPhase]);
  } else if constexpr (sizeof(U) == 4) {
    const hn::Rebind<float, decltype(dd)> df;
#pragma GCC unroll 8
    for (std::size_t piece = 0; piece < kPieces; ++piece) {
      auto& sum = state.sums[(kPieces * kPhase + piece) % State::kSums];
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
      auto& odd_sum = state.sums[(kPieces * kPhase + piece) % State::kSums];
      auto& even_sum = state.sums[(kPieces * kPhase + piece + 1) % State::kSums];
      odd_sum = add_squares<kMayBeBad>(dd, odd, odd_sum);
      even_sum = add_squares<kMayBeBad>(dd, even, even_sum);
    }
  } else {
    // Left out before widening: where Highway emulates the conversion, it takes Inf and NaN for numbers.
    const hn::Rebind<std::uint16_t, decltype(dd)> du;
    const hn::Rebind<hwy::float16_t, decltype(dd)> dh;
    const hn::Rebind<float, decltype(dd)> df;
#pragma GCC unroll 8
    for (std::size_t piece = 0; piece < kPieces; ++piece) {
      auto halves = load_bytes(du, at + piece * piece_bytes);
      if constexpr (kMayBeBad) halves = hn::IfThenElseZero(is_finite<F>(du, halves), halves);
      const auto x = hn::PromoteTo(df, hn::BitCast(dh, halves));
      auto& sum = state.sums[(kPieces * kPhase + piece) % State::kSums];
      sum = add_squares<false>(dd, x, sum);
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

template <class F, class Look, int kPhase, class D>
HWY_INLINE void look(D d, const std::uint8_t* at, BlockState<D>& state) {
  using U = hn::TFromD<D>;
  const hn::RebindToSigned<D> di;
  const auto code = load_bytes(d, at);
  const auto magnitude_mask = hn::Set(d, static_cast<U>(F::kFormat.magnitude_mask()));
  const auto magnitude = hn::BitCast(di, hn::And(code, magnitude_mask));
  if constexpr (Look::kCount) count_tiny<F>(d, code, state);
  if constexpr (Look::kExclude) {
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
    if constexpr (Look::kSigned) {
      state.umax = hn::Max(state.umax, code);
      state.smax = hn::Max(state.smax, hn::BitCast(di, code));
    } else {
      state.most_magnitude = hn::Max(state.most_magnitude, magnitude);
    }
    state.least_magnitude = hn::Min(state.least_magnitude, magnitude);
  }
  add_squares_at<F, Look::kExclude, kPhase>(d, at, state);
}

// All whole vectors of a block; returns how many elements that were.
template <class F, class Look, class D>
HWY_INLINE std::size_t look_at_block(D d, const std::uint8_t* bytes, std::size_t n, BlockState<D>& state) {
  const std::size_t lanes = hn::Lanes(d);
  constexpr std::size_t kSize = sizeof(hn::TFromD<D>);
  std::size_t i = 0;
  constexpr std::size_t kAtOnce = kSize == 2 ? 2 : 4;  // 16-bit elements already make many sums of one vector
  for (; i + kAtOnce * lanes <= n; i += kAtOnce * lanes) {
    look<F, Look, 0>(d, bytes + i * kSize, state);
    look<F, Look, 1>(d, bytes + (i + lanes) * kSize, state);
    if constexpr (kAtOnce == 4) {
      look<F, Look, 2>(d, bytes + (i + 2 * lanes) * kSize, state);
      look<F, Look, 3>(d, bytes + (i + 3 * lanes) * kSize, state);
    }
  }
  for (; i + lanes <= n; i += lanes) look<F, Look, 0>(d, bytes + i * kSize, state);
  return i;
}

template <class F, class D>
HWY_INLINE void count_tiny_in_block(D d, const std::uint8_t* bytes, std::size_t n, BlockState<D>& state) {
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t i = 0; i + lanes <= n; i += lanes) {
    count_tiny<F>(d, load_bytes(d, bytes + i * sizeof(hn::TFromD<D>)), state);
  }
}

// The largest code of each sign, of all whole vectors of a block.
template <class D>
HWY_INLINE void find_extremes(D d, const std::uint8_t* bytes, std::size_t n, BlockState<D>& state) {
  const hn::RebindToSigned<D> di;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t i = 0; i + lanes <= n; i += lanes) {
    const auto code = load_bytes(d, bytes + i * sizeof(hn::TFromD<D>));
    state.umax = hn::Max(state.umax, code);
    state.smax = hn::Max(state.smax, hn::BitCast(di, code));
  }
}

// Before Everything: does the largest magnitude, or the largest code of a sign, lie in the non-finite range?
template <class F, bool kSigned, class D>
HWY_INLINE bool saw_non_finite(D d, const BlockState<D>& state) {
  using U = hn::TFromD<D>;
  const hn::RebindToSigned<D> di;
  using S = hn::TFromD<decltype(di)>;
  const auto most_finite = hn::Set(di, static_cast<S>(F::kFormat.exponent_mask() - 1));
  if constexpr (!kSigned) return !hn::AllFalse(di, hn::Gt(state.most_magnitude, most_finite));
  const auto positive = hn::Gt(state.smax, most_finite);
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

// Whether a value of this magnitude could be a new largest code of its sign.
template <class F>
HWY_INLINE bool may_extend(const RawTotals& totals, std::uint64_t magnitude) {
  return static_cast<std::int64_t>(magnitude) > totals.smax ||
         (magnitude | F::kFormat.sign_mask()) > totals.umax;
}

// Of a block whose extremes were looked at.
template <class F, class D>
HWY_INLINE std::uint64_t largest_magnitude(D d, const BlockState<D>& state) {
  const auto umax = static_cast<std::uint64_t>(hn::GetLane(hn::MaxOfLanes(d, state.umax)));
  const auto smax =
      static_cast<std::int64_t>(hn::GetLane(hn::MaxOfLanes(typename BlockState<D>::Signed(), state.smax)));
  const std::uint64_t negative =
      (umax & F::kFormat.sign_mask()) != 0 ? umax & F::kFormat.magnitude_mask() : 0;
  return HWY_MAX(negative, static_cast<std::uint64_t>(HWY_MAX(smax, 0)));
}

// A guess for the next block, from those before: tensors with some zeros mostly have them everywhere, those
// of one sign mostly are of that sign throughout, and in all others the extremes are soon found.
struct Expect {
  bool tiny = false;
  int calm = 0;  // blocks in a row whose magnitudes alone would have told that they bring no new extreme

  HWY_INLINE bool new_extremes() const { return calm < 4; }
};

// One block of codes; `state` is fresh. Returns how many elements were looked at: all but those of the last,
// broken vector.
template <class F, class D>
HWY_INLINE std::size_t look_as_needed(D d, const std::uint8_t* bytes, std::size_t n, const RawTotals& totals,
                                      Expect& expect, BlockState<D>& state) {
  const hn::RebindToSigned<D> di;
  std::size_t done;
  bool is_bad;
  const bool is_signed = expect.new_extremes();
  if (is_signed) {
    done = expect.tiny ? look_at_block<F, CountingExtremes>(d, bytes, n, state)
                       : look_at_block<F, Extremes>(d, bytes, n, state);
    is_bad = saw_non_finite<F, true>(d, state);
  } else {
    done = expect.tiny ? look_at_block<F, CountingMagnitudes>(d, bytes, n, state)
                       : look_at_block<F, Magnitudes>(d, bytes, n, state);
    is_bad = saw_non_finite<F, false>(d, state);
  }
  if (HWY_UNLIKELY(is_bad)) {
    state = BlockState<D>();
    return look_at_block<F, Everything>(d, bytes, n, state);
  }
  const bool tiny = saw_tiny<F>(d, state);
  if (tiny && !expect.tiny) count_tiny_in_block<F>(d, bytes, n, state);
  expect.tiny = tiny;
  bool is_new;
  if (is_signed) {
    RawTotals after = totals;
    after.umax = HWY_MAX(after.umax, static_cast<std::uint64_t>(hn::GetLane(hn::MaxOfLanes(d, state.umax))));
    after.smax = HWY_MAX(after.smax, static_cast<std::int64_t>(hn::GetLane(hn::MaxOfLanes(di, state.smax))));
    is_new = may_extend<F>(after, largest_magnitude<F>(d, state));
  } else {
    const auto most = static_cast<std::uint64_t>(hn::GetLane(hn::MaxOfLanes(di, state.most_magnitude)));
    is_new = may_extend<F>(totals, most);
    if (is_new) find_extremes(d, bytes, n, state);
  }
  expect.calm = is_new ? 0 : expect.calm + 1;
  return done;
}

// Sums of counters cannot wrap: a block holds fewer elements than the narrowest lane can count.
template <class D>
HWY_INLINE std::uint64_t total(D d, hn::Vec<D> count) {
  return hn::GetLane(hn::SumOfLanes(d, count));
}

template <class D>
HWY_INLINE double sum_of_squares(const BlockState<D>& state) {
  const SquareTag<D> dd;
  const auto& sums = state.sums;
  auto sum = hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]));
  if constexpr (BlockState<D>::kSums == 8) {
    sum = hn::Add(sum, hn::Add(hn::Add(sums[4], sums[5]), hn::Add(sums[6], sums[7])));
  }
  return hn::GetLane(hn::SumOfLanes(dd, sum));
}

template <class F>
void full_kernel(const void* data, std::size_t n, RawTotals& totals) noexcept {
  using U = typename F::U;
  const hn::ScalableTag<U> d;
  using D = hn::ScalableTag<U>;
  const hn::RebindToSigned<D> di;
  const auto* bytes = static_cast<const std::uint8_t*>(data);
  const std::size_t lanes = hn::Lanes(d);
  Expect expect;
  while (n != 0) {
    const std::size_t block = HWY_MIN(n, kBlock);
    BlockState<D> state;
    const std::size_t done = look_as_needed<F>(d, bytes, block, totals, expect, state);
    std::size_t padding = 0;
    if (done != block) {  // the last elements, filled up with NaN, which Everything leaves out
      HWY_ALIGN std::uint8_t last[HWY_MAX_BYTES];
      padding = done + lanes - block;
      hn::StoreU(hn::BitCast(hn::Repartition<std::uint8_t, D>(), hn::Set(d, hwy::LimitsMax<U>())),
                 hn::Repartition<std::uint8_t, D>(), last);
      __builtin_memcpy(last, bytes + done * sizeof(U), (block - done) * sizeof(U));
      look<F, Everything, 0>(d, last, state);
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
    totals.sum_sq += sum_of_squares(state);
    bytes += block * sizeof(U);
    n -= block;
  }
}

}  // namespace finitude::sense::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
