// Contiguous memory: picks the kernel for the dtype and turns its bits into values.
#include "finitude/scan.h"

#include <algorithm>

#include "sense/format.h"
#include "sense/fp8.h"
#include "sense/fp_env.h"
#include "sense/kernels.h"
#include "sense/scan_with.h"

namespace finitude::sense {
namespace {

template <const BitFormat& kFormat>
Quick judge(std::uint64_t most) noexcept {
  if (most >= kFormat.first_non_finite()) return {true, 0};
  return {false, decode(most, kFormat)};
}

template <const BitFormat& kFormat>
Quick quick_with(QuickKernel kernel, const void* data, std::size_t reals) noexcept {
  if (reals == 0) return {};
  return judge<kFormat>(kernel(data, reals, kFormat.first_non_finite()));
}

Health health_of(const RawTotals& raw, std::size_t reals, const BitFormat& format) noexcept {
  Health health;
  health.numel = reals;
  health.nan = raw.non_finite - raw.pos_inf - raw.neg_inf;
  health.pos_inf = raw.pos_inf;
  health.neg_inf = raw.neg_inf;
  health.zero = raw.zero;
  health.subnormal = raw.tiny - raw.zero;
  health.sum_sq = raw.sum_sq;
  if (health.finite() == 0) return health;
  const bool any_negative = (raw.umax & format.sign_mask()) != 0;
  const bool all_negative = raw.smax < 0;
  const std::uint64_t least = any_negative ? raw.umax : raw.least_magnitude;
  const std::uint64_t most =
      all_negative ? raw.least_magnitude | format.sign_mask() : static_cast<std::uint64_t>(raw.smax);
  health.min = decode(least, format);
  health.max = decode(most, format);
  health.absmax = decode(std::max(least & format.magnitude_mask(), most & format.magnitude_mask()), format);
  return health;
}

std::size_t reals_of(std::size_t numel, DType dtype) noexcept {
  return numel * static_cast<std::size_t>(info(dtype).reals_per_element);
}

}  // namespace

Quick quick_scan_with(const Kernels& with, const void* data, std::size_t numel, DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat64:
      return quick_with<kFloat64Format>(with.quick64, data, numel);
    case DType::kFloat32:
      return quick_with<kFloat32Format>(with.quick32, data, numel);
    case DType::kFloat16:
      return quick_with<kFloat16Format>(with.quick16, data, numel);
    case DType::kBFloat16:
      return quick_with<kBFloat16Format>(with.quick16, data, numel);
    case DType::kComplex128:
      return quick_with<kFloat64Format>(with.quick64, data, 2 * numel);
    case DType::kComplex64:
      return quick_with<kFloat32Format>(with.quick32, data, 2 * numel);
    case DType::kComplex32:
      return quick_with<kFloat16Format>(with.quick16, data, 2 * numel);
    case DType::kFloat8E4M3FN:
      return quick_with<kFloat8E4M3FNFormat>(with.quick8, data, numel);
    case DType::kFloat8E4M3FNUZ:
      return quick_with<kFloat8E4M3FNUZFormat>(with.quick8_fnuz, data, numel);
    case DType::kFloat8E5M2:
      return quick_with<kFloat8E5M2Format>(with.quick8, data, numel);
    case DType::kFloat8E5M2FNUZ:
      return quick_with<kFloat8E5M2FNUZFormat>(with.quick8_fnuz, data, numel);
    case DType::kOther:
      break;
  }
  return {};
}

Health full_scan_part(const Kernels& with, const void* data, std::size_t numel, DType dtype,
                      RawTotals& known) noexcept {
  FullKernel kernel = nullptr;
  switch (dtype) {
    case DType::kFloat64:
    case DType::kComplex128:
      kernel = with.full_float64;
      break;
    case DType::kFloat32:
    case DType::kComplex64:
      kernel = with.full_float32;
      break;
    case DType::kFloat16:
    case DType::kComplex32:
      kernel = with.full_float16;
      break;
    case DType::kBFloat16:
      kernel = with.full_bfloat16;
      break;
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E4M3FNUZ:
    case DType::kFloat8E5M2:
    case DType::kFloat8E5M2FNUZ:
      return full_scan_fp8(data, numel, dtype);
    case DType::kOther:
      return {};
  }
  if (kernel == nullptr || numel == 0) return {};
  const std::size_t reals = reals_of(numel, dtype);
  const StandardFpEnv standard;
  known.zero = known.tiny = known.non_finite = known.pos_inf = known.neg_inf = 0;
  known.sum_sq = 0;
  kernel(data, reals, known);
  return health_of(known, reals, bit_format(dtype));
}

Health full_scan_with(const Kernels& with, const void* data, std::size_t numel, DType dtype) noexcept {
  RawTotals fresh;
  return full_scan_part(with, data, numel, dtype, fresh);
}

Quick quick_scan(const void* data, std::size_t numel, DType dtype) noexcept {
  return quick_scan_with(kernels(), data, numel, dtype);
}

Health full_scan(const void* data, std::size_t numel, DType dtype) noexcept {
  return full_scan_with(kernels(), data, numel, dtype);
}

std::size_t first_non_finite(const void* data, std::size_t numel, DType dtype) noexcept {
  const BitFormat format = bit_format(dtype);
  if (format.bits == 0) return numel;
  const auto* bytes = static_cast<const unsigned char*>(data);
  const auto element_bytes = reals_of(1, dtype) * static_cast<std::size_t>(format.bits / 8);
  // The first block that holds one, then by halves.
  std::size_t begin = 0, end = 0;
  for (; begin < numel; begin = end) {
    end = begin + std::min(kBlock, numel - begin);
    if (quick_scan(bytes + begin * element_bytes, end - begin, dtype).bad) break;
  }
  if (begin >= numel) return numel;
  while (end - begin > 1) {
    const std::size_t middle = begin + (end - begin) / 2;
    const bool in_front = quick_scan(bytes + begin * element_bytes, middle - begin, dtype).bad;
    (in_front ? end : begin) = middle;
  }
  return begin;
}

std::string_view chosen_isa() noexcept { return kernels().isa; }

}  // namespace finitude::sense
