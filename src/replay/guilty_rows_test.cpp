// The search for guilty samples, on steps that are a predicate.
#include "replay/guilty_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace finitude::replay {
namespace {

using Rows = std::vector<std::int64_t>;

Rows all(std::int64_t count) {
  Rows rows(static_cast<std::size_t>(count));
  std::iota(rows.begin(), rows.end(), std::int64_t{0});
  return rows;
}

bool has(const Rows& rows, std::int64_t row) { return std::find(rows.begin(), rows.end(), row) != rows.end(); }
const auto kForever = [] { return true; };

TEST(GuiltyRows, RowsFailingAloneAreFoundQuickly) {
  GuiltyRows out;
  int tries = 0;
  bisect([&](const Rows& kept) { return ++tries, has(kept, 17) || has(kept, 900); }, all(1024), 32, kForever, &out);
  EXPECT_EQ(out.guilty, (Rows{17, 900}));
  EXPECT_FALSE(out.together || out.more);
  EXPECT_LE(tries, 2 * 2 * 10);
}

TEST(GuiltyRows, ThoseThatFailOnlyTogetherAreReportedTogether) {
  GuiltyRows out;
  bisect([](const Rows& kept) { return has(kept, 1) && has(kept, 6); }, all(8), 32, kForever, &out);
  EXPECT_TRUE(out.together);
  EXPECT_TRUE(has(out.guilty, 1) && has(out.guilty, 6));
}

TEST(GuiltyRows, NumberAndTimeAreBounded) {
  GuiltyRows many;
  bisect([](const Rows& kept) { return !kept.empty(); }, all(100), 5, kForever, &many);
  EXPECT_EQ(many.guilty.size(), 5u);
  EXPECT_TRUE(many.more);
  GuiltyRows late;
  int left = 3;
  bisect([](const Rows& kept) { return has(kept, 3); }, all(1024), 32, [&] { return left-- > 0; }, &late);
  EXPECT_TRUE(late.guilty.empty() && late.more);
}

}  // namespace
}  // namespace finitude::replay
