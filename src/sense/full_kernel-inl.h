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
#include "sense/squares-inl.h"

HWY_BEFORE_NAMESPACE();
namespace finitude::sense::HWY_NAMESPACE {

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

template <class D>
struct BlockState {
  using Signed = hn::RebindToSigned<D>;
  hn::Vec<D> umax, zero, tiny, non_finite, pos_inf, neg_inf;
  hn::Vec<Signed> smax, least_magnitude, most_magnitude;
  Sums<ConvertTag<D>> squares;

  HWY_INLINE BlockState() {
    const D d;
    umax = zero = tiny = non_finite = pos_inf = neg_inf = hn::Zero(d);
    smax = hn::Set(Signed(), hwy::LimitsMin<hn::TFromD<Signed>>());
    least_magnitude = hn::Set(Signed(), hwy::LimitsMax<hn::TFromD<Signed>>());
    most_magnitude = hn::Zero(Signed());
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

template <class F, class D>
HWY_INLINE void count_tiny(D d, hn::Vec<D> code, BlockState<D>& state) {
  using U = hn::TFromD<D>;
  const auto magnitude_mask = hn::Set(d, static_cast<U>(F::kFormat.magnitude_mask()));
  const auto exponent_mask = hn::Set(d, static_cast<U>(F::kFormat.exponent_mask()));
  state.zero = add_where(d, state.zero, hn::Eq(hn::And(code, magnitude_mask), hn::Zero(d)));
  state.tiny = add_where(d, state.tiny, hn::Eq(hn::And(code, exponent_mask), hn::Zero(d)));
}

// All but the squares.
template <class F, class Look, class D>
HWY_INLINE void look_at_code(D d, hn::Vec<D> code, BlockState<D>& state) {
  using U = hn::TFromD<D>;
  const hn::RebindToSigned<D> di;
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
}

template <class F, class Look, int kPhase, class D>
HWY_INLINE void look(D d, const std::uint8_t* at, BlockState<D>& state) {
  look_at_code<F, Look>(d, load_bytes(d, at), state);
  if constexpr (F::kSquares) add_squares_at<F, Look::kExclude, kPhase>(d, at, state.squares);
}

template <class F, class Look, int kPhase, class D>
HWY_INLINE void look_near(D d, const std::uint8_t* at, BlockState<D>& state, NearSums<D>& near) {
  const auto code = load_bytes(d, at);
  look_at_code<F, Look>(d, code, state);
  if constexpr (F::kSquares) add_near<F, kPhase>(d, at, code, near);
}

// All whole vectors of a block; returns how many elements that were.
template <class F, class Look, class D>
HWY_INLINE std::size_t look_at_block(D d, const std::uint8_t* bytes, std::size_t n, BlockState<D>& state) {
  const std::size_t lanes = hn::Lanes(d);
  constexpr std::size_t kSize = sizeof(hn::TFromD<D>);
  std::size_t i = 0;
  if constexpr (kSize == 2 && !Look::kExclude) {
    const std::size_t vector = lanes * kSize;
    for (; i + kTogether * lanes <= n; i += kTogether * lanes) {
      const std::uint8_t* at = bytes + i * kSize;
      NearSums<D> near;
      look_near<F, Look, 0>(d, at, state, near);
      look_near<F, Look, 1>(d, at + vector, state, near);
      look_near<F, Look, 2>(d, at + 2 * vector, state, near);
      look_near<F, Look, 3>(d, at + 3 * vector, state, near);
      look_near<F, Look, 4>(d, at + 4 * vector, state, near);
      look_near<F, Look, 5>(d, at + 5 * vector, state, near);
      look_near<F, Look, 6>(d, at + 6 * vector, state, near);
      look_near<F, Look, 7>(d, at + 7 * vector, state, near);
      if constexpr (F::kSquares) near.add_to(state.squares);
    }
  }
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

// The squares of all whole vectors of a block once more, in float64 from the beginning.
template <class F, class D>
HWY_INLINE void square_block_again(D d, const std::uint8_t* bytes, std::size_t n, BlockState<D>& state) {
  const std::size_t lanes = hn::Lanes(d);
  state.squares = Sums<ConvertTag<D>>();
  for (std::size_t i = 0; i + lanes <= n; i += lanes) {
    add_squares_at<F, false, 0>(d, bytes + i * sizeof(hn::TFromD<D>), state.squares);
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
  return static_cast<std::int64_t>(magnitude) > totals.smax || (magnitude | F::kFormat.sign_mask()) > totals.umax;
}

// Of a block whose extremes were looked at.
template <class F, class D>
HWY_INLINE std::uint64_t largest_magnitude(D d, const BlockState<D>& state) {
  const auto umax = static_cast<std::uint64_t>(hn::GetLane(hn::MaxOfLanes(d, state.umax)));
  const auto smax =
      static_cast<std::int64_t>(hn::GetLane(hn::MaxOfLanes(typename BlockState<D>::Signed(), state.smax)));
  const std::uint64_t negative = (umax & F::kFormat.sign_mask()) != 0 ? umax & F::kFormat.magnitude_mask() : 0;
  return HWY_MAX(negative, static_cast<std::uint64_t>(HWY_MAX(smax, 0)));
}

// After this many blocks in a row whose magnitudes alone would have shown that they bring no new extreme, only
// magnitudes are looked at.
inline constexpr int kCalm = 4;

// One block of codes; `state` is fresh. Returns how many elements were looked at: all but those of the last,
// broken vector. What the state holds is not yet in the totals.
template <class F, class D>
HWY_INLINE std::size_t look_as_needed(D d, const std::uint8_t* bytes, std::size_t n, RawTotals& totals,
                                      BlockState<D>& state) {
  const hn::RebindToSigned<D> di;
  RawTotals::Expect& expect = totals.expect;
  std::size_t done;
  bool is_bad;
  const bool is_signed = expect.calm < kCalm;
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
  std::uint64_t most;
  if (is_signed) {
    RawTotals after = totals;
    after.umax = HWY_MAX(after.umax, static_cast<std::uint64_t>(hn::GetLane(hn::MaxOfLanes(d, state.umax))));
    after.smax = HWY_MAX(after.smax, static_cast<std::int64_t>(hn::GetLane(hn::MaxOfLanes(di, state.smax))));
    most = largest_magnitude<F>(d, state);
    is_new = may_extend<F>(after, most);
  } else {
    most = static_cast<std::uint64_t>(hn::GetLane(hn::MaxOfLanes(di, state.most_magnitude)));
    is_new = may_extend<F>(totals, most);
    if (is_new) find_extremes(d, bytes, n, state);
  }
  if constexpr (F::kSquares && sizeof(hn::TFromD<D>) == 2) {
    if (HWY_UNLIKELY(!near_sums_hold<F>(most))) square_block_again<F>(d, bytes, n, state);
  }
  expect.calm = is_new ? 0 : HWY_MIN(expect.calm + 1, kCalm);
  return done;
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
  const auto* bytes = static_cast<const std::uint8_t*>(data);
  const std::size_t lanes = hn::Lanes(d);
  while (n != 0) {
    const std::size_t block = HWY_MIN(n, kBlock);
    BlockState<D> state;
    const std::size_t done = look_as_needed<F>(d, bytes, block, totals, state);
    std::size_t padding = 0;
    if (done != block) {  // the last elements, filled up with NaN, which Everything skips
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
    totals.sum_sq += state.squares.total();
    bytes += block * sizeof(U);
    n -= block;
  }
}

}  // namespace finitude::sense::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
