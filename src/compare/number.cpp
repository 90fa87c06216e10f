#include "compare/number.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

namespace finitude::compare {
namespace {

constexpr std::array<NumberInfo, 11> kInfo = {{{"float64", 8, 52, -1022, 1023},
                                               {"float32", 4, 23, -126, 127},
                                               {"float16", 2, 10, -14, 15},
                                               {"bfloat16", 2, 7, -126, 127},
                                               {"uint8", 1, 0, 0, 0},
                                               {"int8", 1, 0, 0, 0},
                                               {"int16", 2, 0, 0, 0},
                                               {"int32", 4, 0, 0, 0},
                                               {"int64", 8, 0, 0, 0},
                                               {"bool", 1, 0, 0, 0},
                                               {"other", 0, 0, 0, 0}}};

struct Named {
  std::uint8_t scalar_type;
  Element element;
};
constexpr std::array<Named, 13> kNamed = {{{0, {Number::kUInt8, 1, "uint8"}},
                                           {1, {Number::kInt8, 1, "int8"}},
                                           {2, {Number::kInt16, 1, "int16"}},
                                           {3, {Number::kInt32, 1, "int32"}},
                                           {4, {Number::kInt64, 1, "int64"}},
                                           {5, {Number::kFloat16, 1, "float16"}},
                                           {6, {Number::kFloat32, 1, "float32"}},
                                           {7, {Number::kFloat64, 1, "float64"}},
                                           {8, {Number::kFloat16, 2, "complex32"}},
                                           {9, {Number::kFloat32, 2, "complex64"}},
                                           {10, {Number::kFloat64, 2, "complex128"}},
                                           {11, {Number::kBool, 1, "bool"}},
                                           {15, {Number::kBFloat16, 1, "bfloat16"}}}};

template <typename T>
T read(const char* data, std::uint64_t index) noexcept {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}

double half(std::uint16_t bits) noexcept {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  double value;
  if (exponent == 31) {
    value = mantissa == 0 ? HUGE_VAL : std::numeric_limits<double>::quiet_NaN();
  } else {
    value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024, exponent - 25);
  }
  return (bits >> 15) != 0 ? -value : value;
}

}  // namespace

const NumberInfo& info(Number number) noexcept { return kInfo[static_cast<std::size_t>(number)]; }

Element element_of_scalar_type(std::uint8_t scalar_type) noexcept {
  for (const Named& named : kNamed) {
    if (named.scalar_type == scalar_type) return named.element;
  }
  return {Number::kOther, 1, "other"};
}

Element element_of_name(std::string_view dtype) noexcept {
  for (const Named& named : kNamed) {
    if (named.element.dtype == dtype) return named.element;
  }
  return {Number::kOther, 1, "other"};
}

double epsilon(Number number) noexcept { return is_float(number) ? std::ldexp(1.0, -info(number).mantissa_bits) : 0; }

Number coarser(Number a, Number b) noexcept {
  if (!is_float(a)) return b;
  if (!is_float(b)) return a;
  return info(a).mantissa_bits <= info(b).mantissa_bits ? a : b;
}

double decode(const char* data, Number number, std::uint64_t index) noexcept {
  switch (number) {
    case Number::kFloat64:
      return read<double>(data, index);
    case Number::kFloat32:
      return read<float>(data, index);
    case Number::kFloat16:
      return half(read<std::uint16_t>(data, index));
    case Number::kBFloat16:
      return std::bit_cast<float>(static_cast<std::uint32_t>(read<std::uint16_t>(data, index)) << 16);
    case Number::kUInt8:
    case Number::kBool:
      return read<std::uint8_t>(data, index);
    case Number::kInt8:
      return read<std::int8_t>(data, index);
    case Number::kInt16:
      return read<std::int16_t>(data, index);
    case Number::kInt32:
      return read<std::int32_t>(data, index);
    case Number::kInt64:
      return static_cast<double>(read<std::int64_t>(data, index));
    case Number::kOther:
      break;
  }
  return 0;
}

std::int64_t place(double value, Number number) noexcept {
  const NumberInfo& format = info(number);
  const int bits = format.mantissa_bits;
  const std::int64_t infinity = static_cast<std::int64_t>(format.max_exponent - format.min_exponent + 2) << bits;
  const double magnitude = std::fabs(value);
  std::int64_t at = infinity;
  if (magnitude == 0) return 0;
  if (!std::isinf(magnitude)) {
    int exponent = 0;
    std::frexp(magnitude, &exponent);  // magnitude = f * 2^exponent with f in [0.5, 1)
    const int e = std::max(exponent - 1, format.min_exponent);
    if (e <= format.max_exponent) {
      // In steps of the format at this exponent; exact but for the rounding that is meant.
      const double steps = std::nearbyint(std::ldexp(magnitude, bits - e));
      at = std::min(infinity,
                    static_cast<std::int64_t>(steps) + (static_cast<std::int64_t>(e - format.min_exponent) << bits));
    }
  }
  return value < 0 ? -at : at;
}

std::uint64_t ulps(double a, double b, Number number) noexcept {
  if (std::isnan(a) || std::isnan(b)) return kNotComparable;
  if (std::isinf(a) || std::isinf(b)) return a == b ? 0 : kNotComparable;
  const std::int64_t pa = place(a, number), pb = place(b, number);
  return pa > pb ? static_cast<std::uint64_t>(pa) - static_cast<std::uint64_t>(pb)
                 : static_cast<std::uint64_t>(pb) - static_cast<std::uint64_t>(pa);
}

}  // namespace finitude::compare
