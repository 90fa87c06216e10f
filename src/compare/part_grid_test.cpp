// Where parts lie in a whole, and that a tensor cut into parts comes together again.
#include "compare/part_grid.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>

namespace finitude::compare {
namespace {

TEST(PartGrid, PartsOfOneShapeLieInRowMajorOrder) {
  const auto begins = grid({{2, 3}, {2, 3}, {2, 3}, {2, 3}}, {4, 6});
  ASSERT_TRUE(begins);
  EXPECT_EQ(*begins, (std::vector<Shape>{{0, 0}, {0, 3}, {2, 0}, {2, 3}}));
}

TEST(PartGrid, PartsOfOtherSizesFollowOneAnother) {
  const auto begins = grid({{5, 2}, {3, 2}}, {8, 2});
  ASSERT_TRUE(begins);
  EXPECT_EQ(*begins, (std::vector<Shape>{{0, 0}, {5, 0}}));
}

TEST(PartGrid, PartsThatMakeNoWhole) {
  EXPECT_FALSE(grid({{2, 3}}, {4, 3}));                  // too few
  EXPECT_FALSE(grid({{2, 3}, {2, 3}, {2, 3}}, {4, 3}));  // too many
  EXPECT_FALSE(grid({{3}, {3}}, {5}));                   // no multiple
  EXPECT_FALSE(grid({{3}, {3}}, {6, 1}));                // other dimensions
  EXPECT_FALSE(grid({{2, 3}, {2, 2}}, {4, 5}));          // along two dimensions
  EXPECT_FALSE(grid({}, {2}));
  EXPECT_FALSE(grid({{0}, {0}}, {4}));
}

TEST(PartGrid, HowManyPartsMakeAWhole) {
  EXPECT_EQ(parts_needed({2, 3}, {4, 9}), 6U);
  EXPECT_EQ(parts_needed({4}, {4}), 1U);
  EXPECT_EQ(parts_needed({3}, {4}), 0U);
  EXPECT_EQ(parts_needed({0}, {4}), 0U);
  EXPECT_EQ(parts_needed({1}, {4, 1}), 0U);
}

TEST(PartGrid, ElementsOfAHostileShape) {
  EXPECT_EQ(elements_of({3, 4}), 12U);
  EXPECT_EQ(elements_of({}), 1U);
  EXPECT_EQ(elements_of({3, 0}), 0U);
  EXPECT_EQ(elements_of({std::int64_t{1} << 30, std::int64_t{1} << 30}), 0U);
}

// Cuts a whole of any shape into a grid of parts, each filled with the numbers of its places.
RC_GTEST_PROP(PartGrid, PartsMakeTheWholeAgain, ()) {
  const std::size_t dims = *rc::gen::inRange<std::size_t>(1, 4);
  Shape part, whole;
  std::size_t count = 1;
  for (std::size_t d = 0; d < dims; ++d) {
    part.push_back(*rc::gen::inRange<std::int64_t>(1, 5));
    const auto many = *rc::gen::inRange<std::int64_t>(1, 4);
    whole.push_back(part[d] * many);
    count *= static_cast<std::size_t>(many);
  }
  const auto begins = grid(std::vector<Shape>(count, part), whole);
  RC_ASSERT(begins.has_value());
  std::string made(elements_of(whole), '\0'), expected(made.size(), '\0');
  for (std::size_t i = 0; i < made.size(); ++i) expected[i] = static_cast<char>(i % 251 + 1);
  for (const Shape& begin : *begins) {
    std::string bytes;
    for (std::uint64_t i = 0; i < elements_of(part); ++i) {
      std::uint64_t rest = i, place = 0, stride = 1;
      for (std::size_t d = dims; d-- > 0;) {
        const auto at = begin[d] + static_cast<std::int64_t>(rest % static_cast<std::uint64_t>(part[d]));
        rest /= static_cast<std::uint64_t>(part[d]);
        place += static_cast<std::uint64_t>(at) * stride;
        stride *= static_cast<std::uint64_t>(whole[d]);
      }
      bytes += expected[place];
    }
    copy_part(bytes, part, begin, whole, 1, &made);
  }
  RC_ASSERT(made == expected);
}

}  // namespace
}  // namespace finitude::compare
