// Do two scans agree? For tests and fuzzing; needs no test framework.
#pragma once

#include "finitude/scan.h"
#include "sense/format.h"

namespace finitude::sense {

// The first field in which `actual` is not `expected`, or null. Values are compared by bits, so that a host
// that flushes subnormals does not take them for zero. sum_sq may differ by rounding, because kernels add in
// another order: by as many half units in the last place as there are additions in the reference, which adds
// one by one; and of 16-bit formats by what health.h allows.
inline const char* differ(const Health& actual, const Health& expected, DType dtype) noexcept {
  if (actual.numel != expected.numel) return "numel";
  if (actual.nan != expected.nan) return "nan";
  if (actual.pos_inf != expected.pos_inf) return "pos_inf";
  if (actual.neg_inf != expected.neg_inf) return "neg_inf";
  if (actual.zero != expected.zero) return "zero";
  if (actual.subnormal != expected.subnormal) return "subnormal";
  if (order_key(actual.absmax) != order_key(expected.absmax)) return "absmax";
  if (order_key(actual.min) != order_key(expected.min)) return "min";
  if (order_key(actual.max) != order_key(expected.max)) return "max";
  const double gap =
      actual.sum_sq > expected.sum_sq ? actual.sum_sq - expected.sum_sq : expected.sum_sq - actual.sum_sq;
  const double rounding =
      static_cast<double>(expected.numel + 16) * 0x1p-53 + (bit_format(dtype).bits == 16 ? 0x1p-21 : 0);
  if (actual.sum_sq != expected.sum_sq && !(gap <= rounding * expected.sum_sq)) return "sum_sq";
  return nullptr;
}

// A quick scan against what the reference found in the same memory.
inline const char* differ(const Quick& actual, const Health& expected, DType) noexcept {
  if (actual.bad == expected.ok()) return "bad";
  if (!actual.bad && order_key(actual.absmax) != order_key(expected.absmax)) return "absmax";
  return nullptr;
}

}  // namespace finitude::sense
