// How the bits of one real element are laid out, and what they mean. Integer arithmetic only, so that
// neither the host's flush-to-zero mode nor a floating-point trap can change an answer.
#pragma once

#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#error "Finitude must not be compiled with -ffast-math or -ffinite-math-only: it could not see a NaN."
#endif

#include <bit>
#include <cstdint>

#include "finitude/dtype.h"

namespace finitude::sense {

enum class Kind : std::uint8_t { kZero, kSubnormal, kNormal, kNan, kPosInf, kNegInf };

// Which codes are not numbers. kIeee: all-ones exponent is Inf (zero mantissa) or NaN.
// kFn ("finite"): only the all-ones magnitude is NaN. kFnuz ("finite, unsigned zero"): only the code of -0
// is.
enum class Specials : std::uint8_t { kIeee, kFn, kFnuz };

struct BitFormat {
  int bits;
  int mantissa_bits;
  int bias;
  Specials specials;

  constexpr int exponent_bits() const { return bits - 1 - mantissa_bits; }
  constexpr std::uint64_t sign_mask() const { return std::uint64_t{1} << (bits - 1); }
  constexpr std::uint64_t magnitude_mask() const { return sign_mask() - 1; }
  constexpr std::uint64_t mantissa_mask() const { return (std::uint64_t{1} << mantissa_bits) - 1; }
  constexpr std::uint64_t exponent_mask() const { return magnitude_mask() ^ mantissa_mask(); }
  // The smallest magnitude that is not finite; in fnuz formats every magnitude is finite.
  constexpr std::uint64_t first_non_finite() const {
    switch (specials) {
      case Specials::kIeee:
        return exponent_mask();
      case Specials::kFn:
        return magnitude_mask();
      case Specials::kFnuz:
        break;
    }
    return magnitude_mask() + 1;
  }
};

inline constexpr BitFormat kFloat64Format{64, 52, 1023, Specials::kIeee};
inline constexpr BitFormat kFloat32Format{32, 23, 127, Specials::kIeee};
inline constexpr BitFormat kFloat16Format{16, 10, 15, Specials::kIeee};
inline constexpr BitFormat kBFloat16Format{16, 7, 127, Specials::kIeee};
inline constexpr BitFormat kFloat8E4M3FNFormat{8, 3, 7, Specials::kFn};
inline constexpr BitFormat kFloat8E4M3FNUZFormat{8, 3, 8, Specials::kFnuz};
inline constexpr BitFormat kFloat8E5M2Format{8, 2, 15, Specials::kIeee};
inline constexpr BitFormat kFloat8E5M2FNUZFormat{8, 2, 16, Specials::kFnuz};

// The format of a real element; a complex dtype gives that of its parts. kOther has none (bits == 0).
constexpr BitFormat bit_format(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kComplex128:
      return kFloat64Format;
    case DType::kFloat32:
    case DType::kComplex64:
      return kFloat32Format;
    case DType::kFloat16:
    case DType::kComplex32:
      return kFloat16Format;
    case DType::kBFloat16:
      return kBFloat16Format;
    case DType::kFloat8E4M3FN:
      return kFloat8E4M3FNFormat;
    case DType::kFloat8E4M3FNUZ:
      return kFloat8E4M3FNUZFormat;
    case DType::kFloat8E5M2:
      return kFloat8E5M2Format;
    case DType::kFloat8E5M2FNUZ:
      return kFloat8E5M2FNUZFormat;
    case DType::kOther:
      break;
  }
  return {0, 0, 0, Specials::kIeee};
}

constexpr Kind classify(std::uint64_t code, const BitFormat& format) {
  const std::uint64_t magnitude = code & format.magnitude_mask();
  const bool negative = (code & format.sign_mask()) != 0;
  if (format.specials == Specials::kFnuz && negative && magnitude == 0) return Kind::kNan;
  if (magnitude >= format.first_non_finite()) {
    if (format.specials != Specials::kIeee || magnitude > format.exponent_mask()) return Kind::kNan;
    return negative ? Kind::kNegInf : Kind::kPosInf;
  }
  if (magnitude == 0) return Kind::kZero;
  return magnitude <= format.mantissa_mask() ? Kind::kSubnormal : Kind::kNormal;
}

// The value of a finite code, exactly. Both zeros give +0.
constexpr double decode(std::uint64_t code, const BitFormat& format) {
  const std::uint64_t magnitude = code & format.magnitude_mask();
  if (magnitude == 0) return 0.0;
  if (format.bits == 64) return std::bit_cast<double>(code);
  std::uint64_t mantissa = magnitude & format.mantissa_mask();
  int exponent = static_cast<int>(magnitude >> format.mantissa_bits);
  if (exponent == 0) {  // a subnormal of this format is a normal double: shift its leading bit into place
    const int shift = format.mantissa_bits + 1 - static_cast<int>(std::bit_width(mantissa));
    mantissa = (mantissa << shift) & format.mantissa_mask();
    exponent = 1 - shift;
  }
  const auto biased = static_cast<std::uint64_t>(exponent - format.bias + 1023);
  const std::uint64_t sign = (code & format.sign_mask()) << (64 - format.bits);
  return std::bit_cast<double>(sign | biased << 52 | mantissa << (52 - format.mantissa_bits));
}

// Orders doubles as numbers by their bits (-0 equals +0), also where a comparison would flush subnormals.
constexpr std::int64_t order_key(double value) {
  const auto code = std::bit_cast<std::int64_t>(value);
  return code < 0 ? INT64_MIN - code : code;
}

}  // namespace finitude::sense
