#include "observe/spare_blocks.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

namespace finitude::observe {
namespace {

TEST(SpareBlocks, WhatIsGivenBackIsTakenAgain) {
  SpareBlocks blocks;
  void* first = blocks.take(1000);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 64, 0u);
  std::memset(first, 1, 1000);
  blocks.give(first, 1000);
  EXPECT_EQ(blocks.spare_bytes(), 1024u);
  EXPECT_EQ(blocks.take(600), first);  // of the same class
  EXPECT_EQ(blocks.spare_bytes(), 0u);
  blocks.give(first, 600);
}

TEST(SpareBlocks, ASmallerBlockIsNeverHandedOut) {
  SpareBlocks blocks;
  void* small = blocks.take(64);
  blocks.give(small, 64);
  void* large = blocks.take(65);
  EXPECT_NE(large, small);
  std::memset(large, 1, 65);
  blocks.give(large, 65);
}

TEST(SpareBlocks, KeepsNoMoreThanItsBound) {
  SpareBlocks blocks;
  constexpr std::size_t kBig = std::size_t{48} << 20;  // takes 64 MB each
  void* three[] = {blocks.take(kBig), blocks.take(kBig), blocks.take(kBig)};
  for (void* block : three) blocks.give(block, kBig);
  EXPECT_EQ(blocks.spare_bytes(), SpareBlocks::kMostSpare);
  blocks.clear();
  EXPECT_EQ(blocks.spare_bytes(), 0u);
}

TEST(SpareBlocks, WhatIsTooLargeIsRefused) {
  SpareBlocks blocks;
  EXPECT_EQ(blocks.take(std::size_t{1} << 50), nullptr);
}

}  // namespace
}  // namespace finitude::observe
