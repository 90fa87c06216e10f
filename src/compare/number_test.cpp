#include "compare/number.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "compare/distance.h"
#include "compare/noise.h"

namespace finitude::compare {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNaN = std::nan("");

TEST(Ulps, NeighboursAreOneApart) {
  EXPECT_EQ(ulps(1.0, std::nextafter(1.0, 2.0), Number::kFloat64), 1u);
  EXPECT_EQ(ulps(1.0f, std::nextafter(1.0f, 2.0f), Number::kFloat32), 1u);
  EXPECT_EQ(ulps(1.0f, std::nextafter(1.0f, 0.0f), Number::kFloat32), 1u);
  EXPECT_EQ(ulps(1.0, 1.0 + 0x1p-10, Number::kFloat16), 1u);
  EXPECT_EQ(ulps(1.0, 1.0 + 0x1p-7, Number::kBFloat16), 1u);
  EXPECT_EQ(ulps(1.0, 2.0, Number::kFloat32), 1u << 23);
}

TEST(Ulps, ZerosDenormalsAndSigns) {
  const double least = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(ulps(0.0, -0.0, Number::kFloat32), 0u);
  EXPECT_EQ(ulps(0.0, least, Number::kFloat32), 1u);
  EXPECT_EQ(ulps(-least, least, Number::kFloat32), 2u);
  EXPECT_EQ(ulps(std::numeric_limits<float>::min(), std::nextafter(std::numeric_limits<float>::min(), 0.0f),
                 Number::kFloat32),
            1u);
  EXPECT_EQ(ulps(0x1p-24, 0.0, Number::kFloat16), 1u);
  EXPECT_EQ(ulps(0x1p-133, 0.0, Number::kBFloat16), 1u);
  EXPECT_EQ(ulps(std::numeric_limits<double>::denorm_min(), 0.0, Number::kFloat64), 1u);
  EXPECT_EQ(ulps(-1.0, 1.0, Number::kFloat32), 2ull * (127ull << 23));
}

TEST(Ulps, NanAndInfinityHaveNoDistance) {
  EXPECT_EQ(ulps(kNaN, kNaN, Number::kFloat32), kNotComparable);
  EXPECT_EQ(ulps(kNaN, 1.0, Number::kFloat32), kNotComparable);
  EXPECT_EQ(ulps(kInf, kInf, Number::kFloat32), 0u);
  EXPECT_EQ(ulps(kInf, -kInf, Number::kFloat32), kNotComparable);
  EXPECT_EQ(ulps(kInf, std::numeric_limits<float>::max(), Number::kFloat32), kNotComparable);
}

// Against the bits of the machine's own float: random pairs of every magnitude, denormals among them.
TEST(Ulps, OfFloat32AreDifferencesOfItsBits) {
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    const std::uint32_t x = random() & 0x7fffffff, y = (i % 2 != 0 ? x ^ (random() & 0xff) : random()) & 0x7fffffff;
    const float a = std::bit_cast<float>(x), b = std::bit_cast<float>(y);
    if (!std::isfinite(a) || !std::isfinite(b)) continue;
    ASSERT_EQ(ulps(a, b, Number::kFloat32), x > y ? x - y : y - x) << a << " " << b;
    ASSERT_EQ(ulps(-a, b, Number::kFloat32), std::uint64_t{x} + y);
  }
}

// Every number of the small formats has the place of its bits.
TEST(Ulps, OfHalvesAreDifferencesOfTheirBits) {
  for (const Number number : {Number::kFloat16, Number::kBFloat16}) {
    const int exponents = number == Number::kFloat16 ? 31 : 255;
    const int bits = info(number).mantissa_bits;
    for (std::uint16_t code = 0; code < exponents << bits; ++code) {
      const double value = decode(reinterpret_cast<const char*>(&code), number, 0);
      ASSERT_EQ(place(value, number), code);
      ASSERT_EQ(place(-value, number), -static_cast<std::int64_t>(code));
    }
    const auto infinity = static_cast<std::uint16_t>(exponents << bits), nan = static_cast<std::uint16_t>(infinity | 1);
    EXPECT_EQ(decode(reinterpret_cast<const char*>(&infinity), number, 0), kInf);
    EXPECT_TRUE(std::isnan(decode(reinterpret_cast<const char*>(&nan), number, 0)));
    EXPECT_EQ(place(kInf, number), infinity);
  }
}

TEST(Ulps, RoundsToNearestEvenFirst) {
  EXPECT_EQ(ulps(1.0 + 0x1p-8, 1.0, Number::kBFloat16), 0u);    // halfway, to even
  EXPECT_EQ(ulps(1.0 + 0x1.8p-7, 1.0, Number::kBFloat16), 2u);  // halfway between 1 and 2 steps: to even
  EXPECT_EQ(ulps(1.0 + 0x1.01p-8, 1.0, Number::kBFloat16), 1u);
  EXPECT_EQ(place(65520.0, Number::kFloat16), place(kInf, Number::kFloat16));  // rounds over the largest
  EXPECT_EQ(place(65519.0, Number::kFloat16), place(65504.0, Number::kFloat16));
}

Distance of(const std::vector<float>& a, const std::vector<float>& b, std::uint64_t row = 0) {
  return distance(reinterpret_cast<const char*>(a.data()), Number::kFloat32, reinterpret_cast<const char*>(b.data()),
                  Number::kFloat32, a.size(), row);
}

TEST(Distance, NanIsNeverEqualAndNeverNoise) {
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  const Distance one = of({1, nan, 3}, {1, 2, 3});
  EXPECT_EQ(one.nan_in_one, 1u);
  EXPECT_EQ(one.differing, 1u);
  EXPECT_EQ(one.worst, 1);
  EXPECT_EQ(level(one, 1e30), Level::kDiffers);
  const Distance both = of({1, nan}, {1, nan});
  EXPECT_EQ(both.differing, 1u);
  EXPECT_EQ(both.nan_in_both, 1u);
  const Distance infinite = of({inf, 1}, {3e38f, 1});
  EXPECT_EQ(infinite.infinite, 1u);
  EXPECT_EQ(level(infinite, 1e38), Level::kDiffers);
  EXPECT_EQ(of({inf}, {inf}).differing, 0u);
  EXPECT_EQ(of({0.0f}, {-0.0f}).differing, 0u);
  EXPECT_FALSE(of({0.0f}, {-0.0f}).same_bits);
}

TEST(Distance, NamesRowsAndTheWorst) {
  const Distance d = of({1, 2, 3, 4, 5, 6}, {1, 2, 3, 5, 5, 8}, 2);
  EXPECT_EQ(d.rows, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(d.worst, 5);
  EXPECT_EQ(d.max_abs, 2);
  EXPECT_DOUBLE_EQ(d.relative(), 0.25);
}

TEST(Distance, OtherFormatsInTheCoarserOne) {
  const std::uint16_t half[] = {0x3f80, 0x3dcd};  // 1 and 0.1 in bfloat16
  const float single[] = {1.0f, 0.1f};
  const Distance d = distance(reinterpret_cast<const char*>(half), Number::kBFloat16,
                              reinterpret_cast<const char*>(single), Number::kFloat32, 2);
  EXPECT_EQ(d.number, Number::kBFloat16);
  EXPECT_EQ(d.differing, 0u);
  EXPECT_EQ(level(d, 0), Level::kSame);
}

TEST(Distance, OfLargeIntegersIsExact) {
  const std::int64_t a[] = {(1LL << 60) + 1}, b[] = {1LL << 60};
  const Distance d =
      distance(reinterpret_cast<const char*>(a), Number::kInt64, reinterpret_cast<const char*>(b), Number::kInt64, 1);
  EXPECT_EQ(d.differing, 1u);
  EXPECT_EQ(level(d, 1e30), Level::kDiffers);
}

TEST(Distance, OfStatistics) {
  sense::Health a, b;
  a.numel = b.numel = 10;
  a.min = b.min = -1;
  a.max = b.max = a.absmax = b.absmax = 2;
  EXPECT_EQ(level(distance(a, Number::kFloat32, b, Number::kFloat32), 0), Level::kSame);
  b.max = 2.5;
  EXPECT_EQ(level(distance(a, Number::kFloat32, b, Number::kFloat32), 0.1), Level::kDiffers);
  EXPECT_EQ(level(distance(a, Number::kFloat32, b, Number::kFloat32), 0.6), Level::kNoise);
  b = a;
  b.nan = 1;
  EXPECT_EQ(level(distance(a, Number::kFloat32, b, Number::kFloat32), 1e9), Level::kDiffers);
  b.numel = 11;
  EXPECT_FALSE(distance(a, Number::kFloat32, b, Number::kFloat32).known);
}

}  // namespace
}  // namespace finitude::compare
