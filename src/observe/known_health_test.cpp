#include "observe/known_health.h"

#include <gtest/gtest.h>

namespace finitude::observe {
namespace {

using Region = KnownHealth::Region;

char memory[64], other_memory[64];

Region region(std::int64_t begin, std::int64_t end, const char* data = memory) {
  return {memory, data + begin, begin, end, sense::DType::kFloat32};
}

sense::Health health(double max) {
  sense::Health h;
  h.numel = 4;
  h.max = max;
  return h;
}

TEST(KnownHealth, IsFoundAgainByTheVeryRegion) {
  KnownHealth known;
  known.put(1, region(0, 16), health(3));
  sense::Health found;
  ASSERT_TRUE(known.find(1, region(0, 16), &found));
  EXPECT_EQ(found.max, 3);
  EXPECT_FALSE(known.find(1, region(0, 12), &found));
  EXPECT_FALSE(known.find(1, region(4, 16), &found));
  Region as_double = region(0, 16);
  as_double.dtype = sense::DType::kFloat64;
  EXPECT_FALSE(known.find(1, as_double, &found));
}

TEST(KnownHealth, StorageWithNewMemoryIsUnknown) {
  KnownHealth known;
  known.put(1, region(0, 16), health(3));
  sense::Health found;
  EXPECT_FALSE(known.find(1, region(0, 16, other_memory), &found));
}

TEST(KnownHealth, WritesForgetWhatTheyTouch) {
  KnownHealth known;
  known.put(1, region(0, 16), health(1));
  known.put(1, region(16, 32), health(2));
  known.put(1, region(8, 24), health(3));
  known.written(memory, 16, 20);
  sense::Health found;
  EXPECT_TRUE(known.find(1, region(0, 16), &found));
  EXPECT_FALSE(known.find(1, region(16, 32), &found));
  EXPECT_FALSE(known.find(1, region(8, 24), &found));
  known.written(other_memory, 0, 64);
  EXPECT_TRUE(known.find(1, region(0, 16), &found));
}

TEST(KnownHealth, TheLastLookCounts) {
  KnownHealth known;
  known.put(1, region(0, 16), health(1));
  known.put(1, region(0, 16), health(2));
  sense::Health found;
  ASSERT_TRUE(known.find(1, region(0, 16), &found));
  EXPECT_EQ(found.max, 2);
}

TEST(KnownHealth, OnlySoundMemoryIsRemembered) {
  KnownHealth known;
  sense::Health bad = health(1);
  bad.nan = 1;
  known.put(1, region(0, 16), bad);
  sense::Health found;
  EXPECT_FALSE(known.find(1, region(0, 16), &found));
}

TEST(KnownHealth, AnotherGenerationKnowsNothing) {
  KnownHealth known;
  known.put(1, region(0, 16), health(1));
  sense::Health found;
  EXPECT_FALSE(known.find(2, region(0, 16), &found));
  EXPECT_FALSE(known.find(1, region(0, 16), &found));  // and what it had is gone
}

TEST(KnownHealth, ManyRegionsOfOneStorageAreBounded) {
  KnownHealth known;
  for (std::int64_t i = 0; i < 12; ++i) known.put(1, region(4 * i, 4 * i + 4), health(1));
  sense::Health found;
  EXPECT_FALSE(known.find(1, region(0, 4), &found));
  EXPECT_TRUE(known.find(1, region(44, 48), &found));
}

}  // namespace
}  // namespace finitude::observe
