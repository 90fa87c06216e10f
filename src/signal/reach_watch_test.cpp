#include "signal/reach_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

namespace finitude::signal {
namespace {

std::vector<Warning> warnings_of(What what, const std::function<double(std::uint64_t)>& reach, int looks = 40) {
  ReachWatch watch(what);
  std::vector<Warning> all;
  for (int look = 0; look < looks; ++look) {
    const auto step = static_cast<std::uint64_t>(64 * look);
    if (auto found = watch.note(step, 0.1, reach(step))) all.push_back(*found);
  }
  return all;
}

TEST(ReachWatch, GrowthIsSaidOnceWithItsOnset) {
  const auto found = warnings_of(What::kAttention, [](std::uint64_t step) {
    return step < 640 ? 5.0 : std::min(200.0, 5 * std::pow(1.005, static_cast<double>(step - 640)));
  });
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].what, What::kAttention);
  EXPECT_EQ(found[0].since, 768u);  // the last look at less than twice of it
  EXPECT_DOUBLE_EQ(found[0].from, 5);
  EXPECT_GT(found[0].to, 100);
  EXPECT_THAT(in_words(found[0], "attention"), ::testing::StartsWith("the logits of attention reach "));
}

TEST(ReachWatch, SaidAgainWhenTenfold) {
  const auto found = warnings_of(
      What::kLogits, [](std::uint64_t step) { return 2 * std::pow(1.005, static_cast<double>(step)); }, 30);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_GE(found[1].to, 10 * found[0].to / 1.4);
  EXPECT_EQ(found[1].since, 192u);
}

TEST(ReachWatch, UsualAndSingleLargeValuesAreSilent) {
  EXPECT_TRUE(warnings_of(What::kLogits, [](std::uint64_t) { return 300.0; }).empty());  // from the start
  EXPECT_TRUE(warnings_of(What::kLogits, [](std::uint64_t step) { return 2 + 0.03 * double(step); }).empty());
  EXPECT_TRUE(warnings_of(What::kLogits, [](std::uint64_t step) { return step % 640 == 320 ? 500.0 : 5.0; }).empty());
}

TEST(ReachWatch, NonFiniteValuesDoNotCount) {
  EXPECT_TRUE(warnings_of(What::kLogits, [](std::uint64_t step) {
                return step > 300 ? std::numeric_limits<double>::infinity() : -1.0;
              }).empty());
}

}  // namespace
}  // namespace finitude::signal
