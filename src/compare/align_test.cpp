#include "compare/align.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "compare/edits.h"

#if __has_include(<rapidcheck/gtest.h>)
#include <rapidcheck/gtest.h>
#define FINITUDE_RAPIDCHECK 1
#endif

namespace finitude::compare {
namespace {

Key key(std::uint64_t name, std::uint64_t form = 0) {
  Key k;
  k.name = name;
  k.form = name * 1000 + form;
  k.shapes = form;
  return k;
}
std::vector<Key> keys(const std::vector<int>& names) {
  std::vector<Key> out;
  for (const int name : names) out.push_back(key(static_cast<std::uint64_t>(name)));
  return out;
}

// Every call once and in order, partners of one name.
void check(const std::vector<Key>& a, const std::vector<Key>& b, const std::vector<Row>& rows) {
  std::uint32_t i = 0, j = 0;
  for (const Row& row : rows) {
    ASSERT_TRUE(row.a != kGap || row.b != kGap);
    if (row.a != kGap) {
      ASSERT_EQ(row.a, i++);
    }
    if (row.b != kGap) {
      ASSERT_EQ(row.b, j++);
    }
    if (row.a != kGap && row.b != kGap) {
      ASSERT_EQ(a[row.a].name, b[row.b].name);
    }
  }
  ASSERT_EQ(i, a.size());
  ASSERT_EQ(j, b.size());
}
std::size_t pairs(const std::vector<Row>& rows) {
  std::size_t n = 0;
  for (const Row& row : rows) n += row.a != kGap && row.b != kGap;
  return n;
}

// Small limits send small inputs through every way.
const AlignLimits kWays[] = {{}, {16, 4000}, {16, 2}, {1, 0}};

std::size_t longest(const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<std::size_t> above(b.size() + 1, 0), row(b.size() + 1, 0);
  for (const int x : a) {
    for (std::size_t j = 1; j <= b.size(); ++j)
      row[j] = x == b[j - 1] ? above[j - 1] + 1 : std::max(above[j], row[j - 1]);
    std::swap(above, row);
  }
  return above[b.size()];
}

TEST(Align, KnowsWhatIsInsertedAndMissing) {
  EXPECT_EQ(align(keys({1, 2, 3}), keys({1, 4, 2, 3})), (std::vector<Row>{{0, 0}, {kGap, 1}, {1, 2}, {2, 3}}));
  EXPECT_EQ(align(keys({1, 2, 3}), keys({1, 3})), (std::vector<Row>{{0, 0}, {1, kGap}, {2, 1}}));
  EXPECT_EQ(align(keys({1, 2}), keys({1, 3})), (std::vector<Row>{{0, 0}, {1, kGap}, {kGap, 1}}));
  EXPECT_TRUE(align({}, {}).empty());
}

TEST(Align, ShapesDistinguishCallsOfOneName) {
  const std::vector<Key> a{key(1, 5), key(1, 6), key(1, 7)}, b{key(1, 5), key(1, 9), key(1, 6), key(1, 7)};
  EXPECT_EQ(align(a, b), (std::vector<Row>{{0, 0}, {kGap, 1}, {1, 2}, {2, 3}}));
}

TEST(Align, CallsOfOneNamePairWhenShapesDiffer) {
  std::vector<Key> a, b;
  for (std::uint64_t i = 0; i < 40; ++i) a.push_back(key(i % 7, 8)), b.push_back(key(i % 7, 16));
  b.insert(b.begin() + 10, key(99, 16));
  const auto rows = align(a, b);
  check(a, b, rows);
  EXPECT_EQ(pairs(rows), 40u);
}

TEST(Edits, LongestRising) {
  EXPECT_EQ(longest_rising({{0, 5}, {1, 1}, {2, 2}, {3, 0}, {4, 3}}), (Places{{1, 1}, {2, 2}, {4, 3}}));
  EXPECT_TRUE(longest_rising({}).empty());
}

TEST(Edits, AreTheLeast) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<int> a(random() % 30), b(random() % 30);
    for (int& x : a) x = static_cast<int>(random() % 5);
    for (int& x : b) x = static_cast<int>(random() % 5);
    Places same;
    ASSERT_TRUE(common({a.begin(), a.end()}, {b.begin(), b.end()}, 1000, &same));
    ASSERT_EQ(same.size(), longest(a, b));
    for (std::size_t k = 0; k < same.size(); ++k) {
      ASSERT_EQ(a[same[k].first], b[same[k].second]);
      if (k != 0) {
        ASSERT_TRUE(same[k - 1].first < same[k].first && same[k - 1].second < same[k].second);
      }
    }
    const std::size_t edits = a.size() + b.size() - 2 * same.size();
    EXPECT_EQ(common({a.begin(), a.end()}, {b.begin(), b.end()}, edits == 0 ? 0 : edits - 1, &same), edits == 0);
  }
}

// 100,000 calls: with few changes all of them are found; with nothing in common it still ends soon.
TEST(Align, OfManyCallsIsBounded) {
  std::mt19937 random(3);
  std::vector<Key> a;
  for (int i = 0; i < 100'000; ++i) a.push_back(key(random() % 40, random() % 30));
  std::vector<Key> b = a;
  for (int i = 0; i < 200; ++i)
    b.insert(b.begin() + static_cast<std::ptrdiff_t>(random() % b.size()), key(500, static_cast<std::uint64_t>(i)));
  const auto seconds = [](const auto& work) {
    const auto began = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  };
  std::vector<Row> rows;
  EXPECT_LT(seconds([&] { rows = align(a, b); }), 20);
  check(a, b, rows);
  EXPECT_EQ(pairs(rows), 100'000u);
  for (Key& k : b) k = key(random() % 40, 100 + random() % 30);
  EXPECT_LT(seconds([&] { rows = align(a, b); }), 60);
  check(a, b, rows);
}

#ifdef FINITUDE_RAPIDCHECK
RC_GTEST_PROP(AlignProperty, RowsAreInOrderWhicheverWay, ()) {
  const auto small = rc::gen::inRange(0, 6);
  const auto a = *rc::gen::container<std::vector<int>>(small), b = *rc::gen::container<std::vector<int>>(small);
  for (const AlignLimits& limits : kWays) check(keys(a), keys(b), align(keys(a), keys(b), limits));
}

// What is inserted is a gap, and leaving the gaps out gives back what there was.
RC_GTEST_PROP(AlignProperty, InsertionsAndDeletionsComeBack, (const std::vector<bool>& kept)) {
  std::vector<Key> a, b;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    a.push_back(key(i % 5, i));  // forms occur once: there is one right answer
    if (kept[i]) b.push_back(a.back());
    if (i % 3 == 0) b.push_back(key(77, i));
  }
  for (const AlignLimits& limits : {kWays[0], kWays[1]}) {
    const auto rows = align(a, b, limits);
    check(a, b, rows);
    std::vector<bool> found(kept.size(), false);
    for (const Row& row : rows) {
      if (row.a == kGap || row.b == kGap) continue;
      RC_ASSERT(a[row.a].form == b[row.b].form);
      found[row.a] = true;
    }
    RC_ASSERT(found == kept);
  }
}

RC_GTEST_PROP(AlignProperty, WithItselfNothingIsAlone, ()) {
  const auto a = keys(*rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 4)));
  for (const AlignLimits& limits : kWays) RC_ASSERT(pairs(align(a, a, limits)) == a.size());
}
#endif

}  // namespace
}  // namespace finitude::compare
