// The norm is right wherever the magnitudes lie, in every dtype, by every instruction set and in every layout.
#include "sense/norm_scan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "sense/scan_test_util.h"

namespace finitude::sense {
namespace {

long double exact_norm(const std::vector<std::uint64_t>& codes, const BitFormat& format) {
  long double sum = 0;  // 15 bits of exponent: no square of a float64 overflows
  for (const std::uint64_t code : codes) {
    const long double value = decode(code, format);
    sum += value * value;
  }
  return std::sqrt(sum);
}

std::vector<unsigned char> bytes_of(const std::vector<std::uint64_t>& codes, const BitFormat& format) {
  std::vector<unsigned char> data(codes.size() * static_cast<std::size_t>(format.bits / 8));
  for (std::size_t i = 0; i < codes.size(); ++i) put(data.data(), i, codes[i], format);
  return data;
}

class NormScan : public ::testing::TestWithParam<DType> {
 protected:
  const DType dtype_ = GetParam();
  const BitFormat format_ = bit_format(dtype_);
  const std::size_t reals_ = static_cast<std::size_t>(info(dtype_).reals_per_element);
  std::mt19937_64 random_{17};

  // Finite codes with exponent fields in [low, high].
  std::vector<std::uint64_t> codes(std::size_t count, int low, int high) {
    std::vector<std::uint64_t> all(count * reals_);
    for (auto& code : all) {
      const auto exponent =
          static_cast<std::uint64_t>(low + static_cast<int>(random_() % static_cast<unsigned>(high - low + 1)));
      code = (exponent << format_.mantissa_bits) | (random_() & (format_.mantissa_mask() | format_.sign_mask()));
      if ((code & format_.magnitude_mask()) == 0) code = 1;
    }
    return all;
  }

  void expect_norm(const std::vector<std::uint64_t>& all, const char* what) {
    const auto data = bytes_of(all, format_);
    const std::size_t numel = all.size() / reals_;
    const long double expected = exact_norm(all, format_);
    const double absmax = reference_scan(data.data(), numel, dtype_).absmax;
    for (const Kernels* with : available_kernels()) {
      Squares squares = squares_with(*with, data.data(), numel, dtype_);
      EXPECT_FALSE(squares.bad);
      EXPECT_EQ(squares.absmax, absmax) << with->isa;
      const double scale = scale_of(squares, dtype_);
      if (scale != 1) squares = squares_with(*with, data.data(), numel, dtype_, scale);
      const Norm norm = norm_of(squares, scale);
      EXPECT_EQ(norm.absmax, absmax) << with->isa << what;
      EXPECT_NEAR(static_cast<double>(norm.norm / expected), 1, 0x1p-20) << with->isa << what << all.size();
    }
  }
};

TEST_P(NormScan, AnySizeIsRight) {
  const int middle = format_.bias;
  for (std::size_t size = 1; size < 140; ++size) expect_norm(codes(size, middle - 3, middle), "short ");
  for (const std::size_t size : {4095u, 4096u, 8193u, 40'007u}) expect_norm(codes(size, middle - 3, middle), "long ");
}

TEST_P(NormScan, AnyMagnitudeIsRight) {
  const int most = (1 << format_.exponent_bits()) - 2;
  for (int high = 1; high <= most; high += format_.bits == 64 ? 37 : 7)
    expect_norm(codes(3000, std::max(0, high - 9), high), " magnitude ");
  auto mixed = codes(9000, 0, 2);
  mixed[4567] = static_cast<std::uint64_t>(most) << format_.mantissa_bits;
  expect_norm(mixed, " one huge value ");
}

TEST_P(NormScan, ABadValueIsSeenAnywhere) {
  for (const std::size_t size : {1u, 5u, 33u, 5000u, 70'000u}) {
    for (const std::uint64_t bad : bad_codes(format_)) {
      auto all = codes(size, format_.bias - 1, format_.bias);
      all[random_() % all.size()] = bad;
      const auto data = bytes_of(all, format_);
      for (const Kernels* with : available_kernels())
        EXPECT_TRUE(squares_with(*with, data.data(), size, dtype_).bad) << with->isa << size;
    }
  }
}

TEST_P(NormScan, StridesAndRepeatsCount) {
  const auto all = codes(64 * 48, format_.bias - 3, format_.bias);
  const auto data = bytes_of(all, format_);
  const std::int64_t sizes[] = {48, 32, 3}, strides[] = {1, 96, 0};  // every second row, transposed, three times
  std::vector<std::uint64_t> seen;
  for (std::size_t row = 0; row < 64; row += 2) {
    for (std::size_t i = 0; i < 48 * reals_; ++i) {
      for (int repeat = 0; repeat < 3; ++repeat) seen.push_back(all[row * 48 * reals_ + i]);
    }
  }
  const Norm norm = norm_scan_strided(data.data(), sizes, strides, 3, dtype_);
  EXPECT_NEAR(static_cast<double>(norm.norm / exact_norm(seen, format_)), 1, 0x1p-20);
  EXPECT_EQ(norm.absmax, full_scan_strided(data.data(), sizes, strides, 3, dtype_).absmax);
}

INSTANTIATE_TEST_SUITE_P(DTypes, NormScan, ::testing::ValuesIn(kAllDTypes),
                         [](const auto& param) { return std::string(sense::info(param.param).name); });

TEST(NormScanFloat64, NeitherOverflowsNorVanishes) {
  for (const double magnitude : {1e300, 1e-300, 5e-324, 1.0}) {
    const std::vector<double> values(100, magnitude);
    const Norm norm = norm_scan(values.data(), values.size(), DType::kFloat64);
    EXPECT_NEAR(norm.norm / magnitude, 10, 1e-9);
    const std::int64_t sizes[] = {50}, strides[] = {2};
    const double half = norm_scan_strided(values.data(), sizes, strides, 1, DType::kFloat64).norm;
    EXPECT_NEAR(half, std::sqrt(50.0) * magnitude, std::max(1e-9 * half, 5e-324));
  }
}

TEST(NormScanEmpty, HasNoNorm) {
  const Norm norm = norm_scan(nullptr, 0, DType::kFloat32);
  EXPECT_FALSE(norm.bad);
  EXPECT_EQ(norm.norm, 0);
}

}  // namespace
}  // namespace finitude::sense
