#include "observe/guard_zones.h"

#include <gtest/gtest.h>

#include <cstring>

namespace finitude::observe {
namespace {

char* taken(GuardZones& zones, std::size_t size_bytes, record::OpId op = 1) {
  char* const block = static_cast<char*>(zones.take(size_bytes, op));
  EXPECT_NE(block, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 64, 0u);
  if (size_bytes > 0) std::memset(block, 7, size_bytes);
  return block;
}

TEST(GuardZones, WritesInBoundsAreNoDamage) {
  GuardZones zones;
  for (const std::size_t size : {0u, 1u, 100u, 4096u}) {
    char* const block = taken(zones, size);
    zones.check(2, true);
    EXPECT_TRUE(zones.give(block, 3));
  }
  zones.check(4, true);
  EXPECT_TRUE(zones.damages().empty());
}

TEST(GuardZones, WriteBehindTheEnd) {
  GuardZones zones;
  char* const block = taken(zones, 100, 5);
  std::memset(block + 96, 1, 12);
  zones.check(7, false);
  zones.check(8, true);  // it is reported once
  ASSERT_EQ(zones.damages().size(), 1u);
  const GuardDamage found = zones.damages().front();
  EXPECT_EQ(found.where, GuardDamage::kAfter);
  EXPECT_EQ(found.address, reinterpret_cast<std::uint64_t>(block));
  EXPECT_EQ(found.size_bytes, 100u);
  EXPECT_EQ(found.first, 100);
  EXPECT_EQ(found.end, 108);
  EXPECT_EQ(found.made_in, 5u);
  EXPECT_EQ(found.seen_at, 7u);
  EXPECT_FALSE(found.seen_at_end);
}

TEST(GuardZones, WriteBeforeTheStartIsSeenWhenItIsGivenBack) {
  GuardZones zones;
  char* const block = taken(zones, 64);
  block[-4] = 0;
  zones.give(block, 9);
  ASSERT_EQ(zones.damages().size(), 1u);
  EXPECT_EQ(zones.damages().front().where, GuardDamage::kBefore);
  EXPECT_EQ(zones.damages().front().first, -4);
  EXPECT_EQ(zones.damages().front().seen_at, 9u);
}

TEST(GuardZones, WriteAfterItWasGivenBack) {
  GuardZones zones;
  char* const block = taken(zones, 256, 2);
  zones.give(block, 3);
  EXPECT_EQ(static_cast<unsigned char>(block[17]), 0xFF) << "read as a float it is NaN";
  std::memset(block + 16, 0, 8);
  zones.check(6, true);
  ASSERT_EQ(zones.damages().size(), 1u);
  const GuardDamage found = zones.damages().front();
  EXPECT_EQ(found.where, GuardDamage::kFreed);
  EXPECT_EQ(found.first, 16);
  EXPECT_EQ(found.end, 24);
  EXPECT_EQ(found.freed_in, 3u);
  EXPECT_TRUE(found.seen_at_end);
}

TEST(GuardZones, MemoryThatIsKeptIsBounded) {
  GuardZones zones;
  const std::size_t size = GuardZones::kMostQuarantine / 4;
  char* const first = taken(zones, size);
  zones.give(first, 1);
  first[8] = 0;  // too much for each look; seen as it is let go
  for (int i = 0; i < 4; ++i) zones.give(taken(zones, size), 2);
  ASSERT_EQ(zones.damages().size(), 1u);
  EXPECT_EQ(zones.damages().front().first, 8);
}

TEST(GuardZones, MemoryOfOthersIsLeftAlone) {
  GuardZones zones;
  int other = 0;
  EXPECT_FALSE(zones.give(&other, 1));
  EXPECT_EQ(other, 0);
}

}  // namespace
}  // namespace finitude::observe
