// The scalar definition of right: every element is classified and decoded from its bits, one at a time.
#include "finitude/scan.h"
#include "sense/format.h"
#include "sense/fp_env.h"
#include "sense/load_code.h"

namespace finitude::sense {

Health reference_scan(const void* data, std::size_t numel, DType dtype) noexcept {
  Health health;
  const BitFormat format = bit_format(dtype);
  if (format.bits == 0) return health;
  const StandardFpEnv standard;
  const auto* bytes = static_cast<const unsigned char*>(data);
  const std::size_t reals = numel * static_cast<std::size_t>(info(dtype).reals_per_element);
  bool any_finite = false;
  for (std::size_t i = 0; i < reals; ++i) {
    const std::uint64_t code = load_code(bytes + i * static_cast<std::size_t>(format.bits / 8), format.bits);
    ++health.numel;
    switch (classify(code, format)) {
      case Kind::kNan:
        ++health.nan;
        continue;
      case Kind::kPosInf:
        ++health.pos_inf;
        continue;
      case Kind::kNegInf:
        ++health.neg_inf;
        continue;
      case Kind::kZero:
        ++health.zero;
        break;
      case Kind::kSubnormal:
        ++health.subnormal;
        break;
      case Kind::kNormal:
        break;
    }
    const double value = decode(code, format);
    const double magnitude = decode(code & format.magnitude_mask(), format);
    if (!any_finite || value < health.min) health.min = value;
    if (!any_finite || value > health.max) health.max = value;
    if (!any_finite || magnitude > health.absmax) health.absmax = magnitude;
    health.sum_sq += value * value;
    any_finite = true;
  }
  return health;
}

}  // namespace finitude::sense
