// Taking the health of two parts together.
#include "finitude/health.h"

#include "sense/format.h"

namespace finitude::sense {

Health merge(const Health& a, const Health& b) noexcept {
  Health both;
  both.numel = a.numel + b.numel;
  both.nan = a.nan + b.nan;
  both.pos_inf = a.pos_inf + b.pos_inf;
  both.neg_inf = a.neg_inf + b.neg_inf;
  both.zero = a.zero + b.zero;
  both.subnormal = a.subnormal + b.subnormal;
  both.sum_sq = a.sum_sq + b.sum_sq;
  // A part with no finite value has no range; its zeros are placeholders.
  const bool has_a = a.finite() != 0, has_b = b.finite() != 0;
  if (has_a && has_b) {
    both.absmax = order_key(a.absmax) >= order_key(b.absmax) ? a.absmax : b.absmax;
    both.min = order_key(a.min) <= order_key(b.min) ? a.min : b.min;
    both.max = order_key(a.max) >= order_key(b.max) ? a.max : b.max;
  } else if (has_a || has_b) {
    const Health& only = has_a ? a : b;
    both.absmax = only.absmax;
    both.min = only.min;
    both.max = only.max;
  }
  return both;
}

}  // namespace finitude::sense
