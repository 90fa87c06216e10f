// The table of limits of every number format.
#include "finitude/dtype.h"

#include "sense/format.h"

namespace finitude::sense {
namespace {

constexpr DTypeInfo describe(std::string_view name, DType dtype, int reals) {
  const BitFormat format = bit_format(dtype);
  const auto exponent_only = [&](int power) {
    return std::bit_cast<double>(static_cast<std::uint64_t>(power + 1023) << 52);
  };
  return {name,
          static_cast<std::size_t>(format.bits / 8),
          reals,
          decode(format.first_non_finite() - 1, format),
          exponent_only(1 - format.bias),
          exponent_only(-format.mantissa_bits)};
}

constexpr DTypeInfo kInfos[] = {
    describe("float64", DType::kFloat64, 1),
    describe("float32", DType::kFloat32, 1),
    describe("float16", DType::kFloat16, 1),
    describe("bfloat16", DType::kBFloat16, 1),
    describe("complex128", DType::kComplex128, 2),
    describe("complex64", DType::kComplex64, 2),
    describe("complex32", DType::kComplex32, 2),
    describe("float8_e4m3fn", DType::kFloat8E4M3FN, 1),
    describe("float8_e4m3fnuz", DType::kFloat8E4M3FNUZ, 1),
    describe("float8_e5m2", DType::kFloat8E5M2, 1),
    describe("float8_e5m2fnuz", DType::kFloat8E5M2FNUZ, 1),
    {"other", 0, 0, 0, 0, 0},
};
static_assert(sizeof(kInfos) / sizeof(kInfos[0]) == static_cast<std::size_t>(DType::kOther) + 1);

}  // namespace

const DTypeInfo& info(DType dtype) noexcept {
  const auto index = static_cast<std::size_t>(dtype);
  return kInfos[index <= static_cast<std::size_t>(DType::kOther) ? index : static_cast<std::size_t>(DType::kOther)];
}

bool is_half(DType dtype) noexcept {
  const std::size_t size = info(dtype).size_bytes;
  return size == 1 || size == 2;
}

}  // namespace finitude::sense
