#include "base/checksum.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace finitude::base {
namespace {

TEST(Checksum, EveryByteAndEveryLengthMatters) {
  std::set<std::uint64_t> seen;
  std::vector<unsigned char> bytes(100, 7);
  for (std::size_t n = 0; n <= bytes.size(); ++n) EXPECT_TRUE(seen.insert(checksum(bytes.data(), n)).second) << n;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= 1;
    EXPECT_TRUE(seen.insert(checksum(bytes.data(), bytes.size())).second) << i;
    bytes[i] ^= 1;
  }
}

TEST(Checksum, DependsOnPositionAndSeed) {
  const float a[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, b[] = {2, 1, 3, 4, 5, 6, 7, 8, 9, 10};
  EXPECT_NE(checksum(a, sizeof a), checksum(b, sizeof b));
  EXPECT_NE(checksum(a, sizeof a), checksum(a, sizeof a, 1));
  EXPECT_EQ(checksum(a, sizeof a), checksum(a, sizeof a));
}

}  // namespace
}  // namespace finitude::base
