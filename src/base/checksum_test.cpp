#include "base/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
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

TEST(Checksum, PiecesMayBeCutAnywhere) {
  std::vector<unsigned char> bytes(259);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * 131);
  for (const std::size_t n : {std::size_t{0}, std::size_t{5}, std::size_t{32}, std::size_t{97}, bytes.size()}) {
    const std::uint64_t whole = checksum(bytes.data(), n, 3);
    for (std::size_t step = 1; step <= n + 1; step += 3) {
      Checksum pieces(3);
      for (std::size_t at = 0; at < n; at += step) pieces.add(bytes.data() + at, std::min(step, n - at));
      EXPECT_EQ(pieces.sum(), whole) << n << " " << step;
    }
  }
  EXPECT_EQ(checksum("0123456789", 10), 0x8db22e385c4f113dull);  // it is in files
}

}  // namespace
}  // namespace finitude::base
