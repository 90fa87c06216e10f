// Merging.
#include "finitude/health.h"

#include <gtest/gtest.h>

#include <limits>

#include "sense/scan_test_util.h"

namespace finitude::sense {
namespace {

Health scan_floats(const std::vector<float>& values) {
  return reference_scan(values.data(), values.size(), DType::kFloat32);
}

TEST(Merge, IsTheHealthOfBothParts) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> a = {1, -7, 0, nan, 1e-41f}, b = {-inf, 5, inf, -0.0f};
  std::vector<float> both = a;
  both.insert(both.end(), b.begin(), b.end());
  EXPECT_TRUE(same(merge(scan_floats(a), scan_floats(b)), scan_floats(both)));
  EXPECT_TRUE(same(merge(scan_floats(b), scan_floats(a)), scan_floats(both)));
}

TEST(Merge, PartsWithoutFiniteValuesDoNotAffectRange) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Health positive = scan_floats({3, 4}), negative = scan_floats({-3, -4});
  for (const Health& nothing : {Health(), scan_floats({nan, nan})}) {
    for (const Health& both : {merge(positive, nothing), merge(nothing, positive)}) {
      EXPECT_EQ(both.min, 3.0);
      EXPECT_EQ(both.max, 4.0);
      EXPECT_EQ(both.nan, nothing.nan);
      EXPECT_EQ(both.absmax, 4.0);
    }
    for (const Health& both : {merge(negative, nothing), merge(nothing, negative)}) {
      EXPECT_EQ(both.min, -4.0);
      EXPECT_EQ(both.max, -3.0);
      EXPECT_EQ(both.absmax, 4.0);
    }
  }
  EXPECT_EQ(merge(Health(), Health()).numel, 0u);
}

TEST(Merge, IsAssociative) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    Health part[3];
    for (Health& health : part) {
      unsigned char data[4 * 9];
      fill(data, 9, kFloat32Format, Mix::kAll, random);
      health = reference_scan(data, random() % 10, DType::kFloat32);
    }
    EXPECT_TRUE(same(merge(merge(part[0], part[1]), part[2]), merge(part[0], merge(part[1], part[2]))));
  }
}

}  // namespace
}  // namespace finitude::sense
