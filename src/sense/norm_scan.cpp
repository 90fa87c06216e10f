// Contiguous memory: picks the kernel for the dtype, and reads once more what float64 cannot square.
#include "sense/norm_scan.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "sense/format.h"
#include "sense/fp8.h"
#include "sense/fp_env.h"

namespace finitude::sense {
namespace {

template <const BitFormat& kFormat>
Squares squares_by(NormKernel kernel, const void* data, std::size_t reals) noexcept {
  Squares result;
  if (reals == 0) return result;
  const StandardFpEnv standard;
  const std::uint64_t most = kernel(data, reals, kFormat.first_non_finite(), &result.sum_sq);
  result.bad = most >= kFormat.first_non_finite();
  if (!result.bad) result.absmax = decode(most, kFormat);
  return result;
}

Squares scaled_squares(const void* data, std::size_t reals, double scale) noexcept {
  Squares result;
  const StandardFpEnv standard;
  for (std::size_t i = 0; i < reals; ++i) {
    double value;
    std::memcpy(&value, static_cast<const unsigned char*>(data) + i * sizeof value, sizeof value);
    value = std::fabs(value) * scale;
    result.sum_sq += value * value;
    if (value > result.absmax) result.absmax = value;
  }
  result.absmax /= scale;
  return result;
}

}  // namespace

Squares squares_with(const Kernels& with, const void* data, std::size_t numel, DType dtype, double scale) noexcept {
  const std::size_t reals = numel * static_cast<std::size_t>(info(dtype).reals_per_element);
  if (scale != 1) return scaled_squares(data, reals, scale);
  switch (dtype) {
    case DType::kFloat64:
    case DType::kComplex128:
      return squares_by<kFloat64Format>(with.norm_float64, data, reals);
    case DType::kFloat32:
    case DType::kComplex64:
      return squares_by<kFloat32Format>(with.norm_float32, data, reals);
    case DType::kFloat16:
    case DType::kComplex32:
      return squares_by<kFloat16Format>(with.norm_float16, data, reals);
    case DType::kBFloat16:
      return squares_by<kBFloat16Format>(with.norm_bfloat16, data, reals);
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E4M3FNUZ:
    case DType::kFloat8E5M2:
    case DType::kFloat8E5M2FNUZ: {
      const Health health = full_scan_fp8(data, numel, dtype);
      return {!health.ok(), health.absmax, health.sum_sq};
    }
    case DType::kOther:
      break;
  }
  return {};
}

Squares merge(const Squares& a, const Squares& b) noexcept {
  return {a.bad || b.bad, order_key(a.absmax) >= order_key(b.absmax) ? a.absmax : b.absmax, a.sum_sq + b.sum_sq};
}

// Between these magnitudes no square that counts is subnormal, and the squares of 2^60 values do not overflow.
double scale_of(const Squares& squares, DType dtype) noexcept {
  if (squares.bad || squares.absmax == 0) return 1;
  if (dtype != DType::kFloat64 && dtype != DType::kComplex128) return 1;
  const int exponent = static_cast<int>(std::bit_cast<std::uint64_t>(squares.absmax) >> 52) - 1023;
  if (exponent < 480 && exponent > -480) return 1;
  return std::ldexp(1.0, exponent > 0 ? -600 : 600);
}

Norm norm_of(const Squares& squares, double scale) noexcept {
  return {squares.bad, squares.absmax, std::sqrt(squares.sum_sq) / scale};
}

Norm norm_scan(const void* data, std::size_t numel, DType dtype, Threads threads) noexcept {
  const Squares once = squares(data, numel, dtype, threads);
  const double scale = scale_of(once, dtype);
  return norm_of(scale == 1 ? once : squares_with(kernels(), data, numel, dtype, scale), scale);
}

}  // namespace finitude::sense
