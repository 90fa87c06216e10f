// The sum of squares is what health.h promises wherever the magnitudes of a block lie: no kernel may lose a
// subnormal, take a zero for a value, or overflow.
#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "sense/scan_test_util.h"

namespace finitude::sense {
namespace {

// The sum, far more exact than any kernel's (Neumaier, in long double).
double exact_sum(const std::vector<std::uint64_t>& codes, const BitFormat& format) {
  long double sum = 0, lost = 0;
  for (const std::uint64_t code : codes) {
    const long double value = decode(code, format), square = value * value, next = sum + square;
    lost += sum >= square ? (sum - next) + square : (square - next) + sum;
    sum = next;
  }
  return static_cast<double>(sum + lost);
}

class SumOfSquares : public ::testing::TestWithParam<DType> {
 protected:
  const DType dtype_ = GetParam();
  const BitFormat format_ = bit_format(dtype_);

  std::uint64_t power_of_two(int exponent) const {
    return static_cast<std::uint64_t>(exponent + format_.bias) << format_.mantissa_bits;
  }

  // `roundings`: how many half units in the last place of a float64 a kernel may be off, beside what 16-bit
  // formats are allowed; 0 where there is nothing to round.
  void expect_sum(const std::vector<std::uint64_t>& codes, int roundings, const char* what, int exponent) {
    std::vector<unsigned char> data(codes.size() * info(dtype_).size_bytes);
    for (std::size_t i = 0; i < codes.size(); ++i) put(data.data(), i, codes[i], format_);
    const double expected = exact_sum(codes, format_);
    for (const Kernels* with : available_kernels()) {
      const int allowed = with == &scalar_kernels() ? 64 * roundings : roundings;  // it has one sum, not many
      const double actual = full_scan_with(*with, data.data(), codes.size(), dtype_).sum_sq;
      const double of_format = format_.bits == 16 && roundings != 0 ? 0x1p-21 : 0;
      EXPECT_NEAR(actual, expected, expected * (allowed * 0x1p-53 + of_format))
          << with->isa << ", " << what << ", largest 2^" << exponent;
    }
  }
};

TEST_P(SumOfSquares, SingleValueIsExactAtEveryExponent) {
  for (int exponent = 1 - format_.bias; exponent <= format_.bias; ++exponent) {
    if (exponent > 0 && exponent != format_.bias) continue;
    std::vector<std::uint64_t> codes(kBlock, 0);
    for (std::size_t i = 0; i < codes.size(); i += 2) codes[i] = format_.sign_mask();
    codes[1234] = power_of_two(exponent);
    expect_sum(codes, 0, "zeros", exponent);
  }
}

TEST_P(SumOfSquares, SubnormalsBesideOneValueOfAnyExponent) {
  std::mt19937_64 random(5);
  for (int exponent = 1 - format_.bias; exponent <= 0; ++exponent) {
    std::vector<std::uint64_t> codes(kBlock);
    for (auto& code : codes) code = random() & (format_.mantissa_mask() | format_.sign_mask());
    codes[kBlock - 7] = power_of_two(exponent);
    expect_sum(codes, 600, "subnormals", exponent);
  }
}

// What is added in float32 must neither overflow nor lose what is small there.
TEST_P(SumOfSquares, FullBlocksOfEveryMagnitude) {
  std::mt19937_64 random(7);
  for (int exponent = 1 - format_.bias; exponent <= format_.bias; ++exponent) {
    std::vector<std::uint64_t> codes(kBlock);
    for (auto& code : codes) {
      const int below = std::min(static_cast<int>(random() % 12), exponent - (1 - format_.bias));
      code = power_of_two(exponent - below) | (random() & (format_.mantissa_mask() | format_.sign_mask()));
    }
    expect_sum(codes, 600, "of one magnitude", exponent);
    codes.front() = power_of_two(format_.bias);  // one huge value, whose square float32 may not hold
    expect_sum(codes, 600, "beside one huge value", exponent);
  }
}

TEST_P(SumOfSquares, BlocksOfOneCode) {
  for (const std::uint64_t code : finite_codes(format_)) {
    for (const std::size_t numel : {kBlock, kBlock + 5, std::size_t{64}, std::size_t{33}}) {
      expect_sum(std::vector<std::uint64_t>(numel, code), 600, "of one code", static_cast<int>(code));
    }
  }
}

TEST_P(SumOfSquares, AllShortCodesAndManyLongOnes) {
  std::mt19937_64 random(6);
  std::vector<std::uint64_t> codes;
  for (std::uint64_t i = 0; i < 1u << 16; ++i) {
    const std::uint64_t code = format_.bits == 16 ? i : random() >> (64 - format_.bits);
    if ((code & format_.magnitude_mask()) < format_.first_non_finite()) codes.push_back(code);
  }
  expect_sum(codes, 4 * 600, "all codes", 0);
}

INSTANTIATE_TEST_SUITE_P(DTypes, SumOfSquares, ::testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16),
                         [](const auto& param) { return std::string(sense::info(param.param).name); });

}  // namespace
}  // namespace finitude::sense
