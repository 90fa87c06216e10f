// The definition of right, checked against values written down manually and against libm.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "sense/scan_test_util.h"

namespace finitude::sense {
namespace {

TEST(DType, LimitsAreThoseOfTheFormats) {
  using Float = std::numeric_limits<float>;
  using Double = std::numeric_limits<double>;
  struct Row {
    DType dtype;
    const char* name;
    std::size_t bytes;
    int reals;
    double most, least, epsilon;
  };
  const double bf16_max = std::ldexp(2 - std::ldexp(1, -7), 127);
  const Row rows[] = {{DType::kFloat64, "float64", 8, 1, Double::max(), Double::min(), Double::epsilon()},
                      {DType::kFloat32, "float32", 4, 1, Float::max(), Float::min(), Float::epsilon()},
                      {DType::kFloat16, "float16", 2, 1, 65504, 0x1p-14, 0x1p-10},
                      {DType::kBFloat16, "bfloat16", 2, 1, bf16_max, 0x1p-126, 0x1p-7},
                      {DType::kComplex128, "complex128", 8, 2, Double::max(), Double::min(), Double::epsilon()},
                      {DType::kComplex64, "complex64", 4, 2, Float::max(), Float::min(), Float::epsilon()},
                      {DType::kComplex32, "complex32", 2, 2, 65504, 0x1p-14, 0x1p-10},
                      {DType::kFloat8E4M3FN, "float8_e4m3fn", 1, 1, 448, 0x1p-6, 0x1p-3},
                      {DType::kFloat8E4M3FNUZ, "float8_e4m3fnuz", 1, 1, 240, 0x1p-7, 0x1p-3},
                      {DType::kFloat8E5M2, "float8_e5m2", 1, 1, 57344, 0x1p-14, 0x1p-2},
                      {DType::kFloat8E5M2FNUZ, "float8_e5m2fnuz", 1, 1, 57344, 0x1p-15, 0x1p-2},
                      {DType::kOther, "other", 0, 0, 0, 0, 0}};
  for (const Row& row : rows) {
    const DTypeInfo& entry = info(row.dtype);
    EXPECT_EQ(entry.name, row.name);
    EXPECT_EQ(entry.size_bytes, row.bytes) << row.name;
    EXPECT_EQ(entry.reals_per_element, row.reals) << row.name;
    EXPECT_EQ(entry.max_finite, row.most) << row.name;
    EXPECT_EQ(entry.min_normal, row.least) << row.name;
    EXPECT_EQ(entry.epsilon, row.epsilon) << row.name;
    EXPECT_EQ(is_half(row.dtype), row.bytes == 1 || row.bytes == 2) << row.name;
  }
}

TEST(Decode, AgreesWithTheDefinitionForEveryCode) {
  for (const DType dtype : kAllDTypes) {
    const BitFormat format = bit_format(dtype);
    if (format.bits > 16) continue;
    for (std::uint64_t code = 0; code < (std::uint64_t{1} << format.bits); ++code) {
      const Kind kind = classify(code, format);
      if (kind == Kind::kNan || kind == Kind::kPosInf || kind == Kind::kNegInf) continue;
      const int exponent = static_cast<int>((code & format.exponent_mask()) >> format.mantissa_bits);
      const double mantissa = std::ldexp(static_cast<double>(code & format.mantissa_mask()), -format.mantissa_bits);
      const double magnitude =
          exponent == 0 ? std::ldexp(mantissa, 1 - format.bias) : std::ldexp(1 + mantissa, exponent - format.bias);
      ASSERT_EQ(decode(code, format), code & format.sign_mask() ? -magnitude : magnitude)
          << info(dtype).name << " " << code;
    }
  }
}

TEST(Decode, AgreesWithTheProcessorForFloat32) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 200000; ++i) {
    const auto code = static_cast<std::uint32_t>(i % 3 == 0 ? random() & 0x807fffff : random());
    const float value = std::bit_cast<float>(code);
    if (!std::isfinite(value)) continue;
    ASSERT_EQ(decode(code, kFloat32Format), static_cast<double>(value)) << code;
  }
}

// How many of the 256 codes are of each kind, from the OCP and the fnuz definitions of the formats.
TEST(ReferenceScan, Float8CodesAreOfTheRightKinds) {
  std::vector<unsigned char> all(256);
  for (std::size_t code = 0; code < 256; ++code) all[code] = static_cast<unsigned char>(code);
  struct Row {
    DType dtype;
    std::uint64_t nan, inf, zero, subnormal;
    double most;
  };
  for (const Row& row : {Row{DType::kFloat8E4M3FN, 2, 0, 2, 14, 448}, Row{DType::kFloat8E4M3FNUZ, 1, 0, 1, 14, 240},
                         Row{DType::kFloat8E5M2, 6, 2, 2, 6, 57344}, Row{DType::kFloat8E5M2FNUZ, 1, 0, 1, 6, 57344}}) {
    const Health health = reference_scan(all.data(), all.size(), row.dtype);
    EXPECT_EQ(health.numel, 256u);
    EXPECT_EQ(health.nan, row.nan) << info(row.dtype).name;
    EXPECT_EQ(health.inf(), row.inf) << info(row.dtype).name;
    EXPECT_EQ(health.zero, row.zero) << info(row.dtype).name;
    EXPECT_EQ(health.subnormal, row.subnormal) << info(row.dtype).name;
    EXPECT_EQ(health.max, row.most) << info(row.dtype).name;
    EXPECT_EQ(health.min, -row.most) << info(row.dtype).name;
  }
  const unsigned char fn_nan[] = {0x7f, 0xff}, fnuz_nan[] = {0x80};
  EXPECT_EQ(reference_scan(fn_nan, 2, DType::kFloat8E4M3FN).nan, 2u);
  EXPECT_EQ(reference_scan(fnuz_nan, 1, DType::kFloat8E4M3FNUZ).nan, 1u);
  EXPECT_EQ(reference_scan(fnuz_nan, 1, DType::kFloat8E5M2FNUZ).nan, 1u);
  EXPECT_EQ(reference_scan(fnuz_nan, 1, DType::kFloat8E5M2).zero, 1u);
}

TEST(ReferenceScan, KnownFloat32Values) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const float values[] = {1.0f, -2.0f, 0.0f, -0.0f, 1e-40f, nan, inf, -inf, 3.0f};
  const Health health = reference_scan(values, 9, DType::kFloat32);
  EXPECT_EQ(health.numel, 9u);
  EXPECT_EQ(health.nan, 1u);
  EXPECT_EQ(health.pos_inf, 1u);
  EXPECT_EQ(health.neg_inf, 1u);
  EXPECT_EQ(health.zero, 2u);
  EXPECT_EQ(health.subnormal, 1u);
  EXPECT_EQ(health.min, -2.0);
  EXPECT_EQ(health.max, 3.0);
  EXPECT_EQ(health.absmax, 3.0);
  EXPECT_EQ(health.sum_sq, 14.0);
  EXPECT_EQ(health.finite(), 6u);
  EXPECT_FALSE(health.ok());
}

TEST(ReferenceScan, ComplexCountsBothParts) {
  const float inf = std::numeric_limits<float>::infinity();
  const float values[] = {1.0f, inf, -4.0f, 0.0f};
  const Health health = reference_scan(values, 2, DType::kComplex64);
  EXPECT_EQ(health.numel, 4u);
  EXPECT_EQ(health.pos_inf, 1u);
  EXPECT_EQ(health.zero, 1u);
  EXPECT_EQ(health.min, -4.0);
  EXPECT_EQ(health.sum_sq, 17.0);
}

TEST(ReferenceScan, NothingFiniteHasNoRange) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float values[] = {nan, nan};
  const Health health = reference_scan(values, 2, DType::kFloat32);
  EXPECT_EQ(health.nan, 2u);
  EXPECT_EQ(health.min, 0.0);
  EXPECT_EQ(health.max, 0.0);
  EXPECT_EQ(health.absmax, 0.0);
  EXPECT_EQ(health.sum_sq, 0.0);
}

TEST(ReferenceScan, FormatsWithoutNanCountNothing) {
  const std::uint64_t data[4] = {~0ull, ~0ull, ~0ull, ~0ull};
  EXPECT_EQ(reference_scan(data, 4, DType::kOther).numel, 0u);
  EXPECT_EQ(full_scan(data, 4, DType::kOther).numel, 0u);
  EXPECT_FALSE(quick_scan(data, 4, DType::kOther).bad);
  EXPECT_EQ(first_non_finite(data, 4, DType::kOther), 4u);
}

}  // namespace
}  // namespace finitude::sense
