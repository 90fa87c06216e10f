#include "sense/exponents.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "sense/format.h"

namespace finitude::sense {
namespace {

using Counts = std::vector<std::uint64_t>;

constexpr DType kFormats[] = {DType::kFloat16,        DType::kBFloat16,   DType::kFloat8E4M3FN,
                              DType::kFloat8E4M3FNUZ, DType::kFloat8E5M2, DType::kFloat8E5M2FNUZ};

TEST(Exponents, NothingButZerosAndNonFinite) {
  const float values[] = {0.0f, -0.0f, NAN, -NAN, INFINITY, -INFINITY};
  EXPECT_EQ(count_exponents(values, 6, DType::kFloat32), Exponents{});
  EXPECT_EQ(count_exponents(nullptr, 0, DType::kFloat32), Exponents{});
  EXPECT_EQ(count_exponents(values, 3, DType::kOther), Exponents{});
}

TEST(Exponents, APowerBeginsItsOwnInterval) {
  const float values[] = {1.0f, -1.5f, 1.9999999f, 2.0f, 0.25f, 0.0f};
  EXPECT_EQ(count_exponents(values, 6, DType::kFloat32), (Exponents{-2, Counts{1, 0, 3, 1}}));
}

TEST(Exponents, LimitsOfDoubles) {
  using limits = std::numeric_limits<double>;
  const double values[] = {limits::denorm_min(), limits::max()};
  const Exponents found = count_exponents(values, 2, DType::kFloat64);
  EXPECT_EQ(found.first, -1074);
  EXPECT_EQ(found.counts.size(), 2098u);
  EXPECT_EQ(found.counts.front() + found.counts.back(), 2u);
}

TEST(Exponents, ComplexValuesCountTwice) {
  const float values[] = {1.0f, 4.0f, 0.0f, 1.0f};
  EXPECT_EQ(count_exponents(values, 2, DType::kComplex64), (Exponents{0, Counts{2, 0, 1}}));
}

TEST(Exponents, EveryCodeOfSmallFormatsAsDecoded) {
  for (const DType dtype : kFormats) {
    const BitFormat format = bit_format(dtype);
    const std::uint32_t codes = 1u << format.bits;
    std::vector<std::uint8_t> bytes;
    std::map<int, std::uint64_t> expected;
    for (std::uint32_t code = 0; code < codes; ++code) {
      for (int byte = 0; byte < format.bits; byte += 8) bytes.push_back(static_cast<std::uint8_t>(code >> byte));
      const Kind kind = classify(code, format);
      if (kind == Kind::kNormal || kind == Kind::kSubnormal) ++expected[std::ilogb(decode(code, format))];
    }
    const Exponents found = count_exponents(bytes.data(), codes, dtype);
    std::map<int, std::uint64_t> as_map;
    for (std::size_t i = 0; i < found.counts.size(); ++i) as_map[found.first + static_cast<int>(i)] = found.counts[i];
    EXPECT_EQ(as_map, expected) << info(dtype).name;
  }
}

}  // namespace
}  // namespace finitude::sense
