#include "signal/weight_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

namespace finitude::signal {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kPass = 64;

std::vector<Warning> warnings_of(std::size_t passes, std::size_t width,
                                 const std::function<Weight(std::uint64_t, std::size_t)>& weight) {
  WeightWatch watch;
  std::vector<Warning> all;
  for (std::uint64_t pass = 0; pass < passes; ++pass) {
    std::vector<Weight> row;
    for (std::size_t i = 0; i < width; ++i) row.push_back(weight(pass, i));
    for (const Warning& w : watch.note(kPass * (pass + 1), 0.1, row)) all.push_back(w);
  }
  return all;
}

float grown(double rate, std::uint64_t passes) {
  return static_cast<float>(0.3 * std::exp(rate * static_cast<double>(passes)));
}

TEST(WeightWatch, AGrowingParameterIsNamedWithItsOnset) {
  const auto found = warnings_of(40, 5, [](std::uint64_t pass, std::size_t i) {
    return Weight{i == 3 && pass > 10 ? grown(0.3, pass - 10) : 0.3f};
  });
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].what, What::kGrowth);
  EXPECT_EQ(found[0].of, Quantity::kWeight);
  EXPECT_EQ(found[0].parameter, 3u);
  EXPECT_FALSE(found[0].is_widespread);
  EXPECT_NEAR(static_cast<double>(found[0].since), 11 * kPass, kPass);
  EXPECT_NEAR(found[0].factor, std::exp(0.3 / kPass), 1e-3);
  ASSERT_TRUE(found[0].horizon);
  EXPECT_THAT(in_words(found[0], "fc.weight"), HasSubstr("the largest weight of fc.weight grew"));
  EXPECT_LE(found.size(), 4u);  // once for each tenfold
}

TEST(WeightWatch, GrowthOfAllIsWidespread) {
  const auto found = warnings_of(20, 5, [](std::uint64_t pass, std::size_t) { return Weight{grown(0.4, pass)}; });
  ASSERT_FALSE(found.empty());
  EXPECT_TRUE(found[0].is_widespread);
}

TEST(WeightWatch, AJumpIsNoGrowth) {
  const auto jumped = [](std::uint64_t pass) { return pass < 60 ? 0.3f : 80.0f; };
  EXPECT_TRUE(warnings_of(80, 3, [&](std::uint64_t pass, std::size_t) { return Weight{jumped(pass)}; }).empty());
  const auto rising = [&](std::uint64_t pass, std::size_t) {  // as learning does, before and after
    return Weight{jumped(pass) * (1 + 0.002f * static_cast<float>(pass))};
  };
  EXPECT_TRUE(warnings_of(120, 3, rising).empty());
}

TEST(WeightWatch, ASpikeInAGrowthHidesNothing) {
  for (std::uint64_t at = 2; at < 30; ++at) {
    const auto found = warnings_of(40, 2, [at](std::uint64_t pass, std::size_t i) {
      return Weight{(pass == at ? 500 : 1) * (i == 1 && pass > 10 ? grown(0.3, pass - 10) : 0.3f)};
    });
    ASSERT_FALSE(found.empty()) << at;
    EXPECT_EQ(found[0].parameter, 1u);
    EXPECT_NEAR(static_cast<double>(found[0].since), 11 * kPass, 2 * kPass) << at;
    EXPECT_NEAR(std::log(found[0].factor), 0.3 / kPass, 0.15 * 0.3 / kPass) << at;  // of nine passes
  }
}

TEST(WeightWatch, TheOneThatGrowsWhileOthersStayIsNamed) {
  const auto alone = [](std::size_t passes, const std::vector<double>& rates) {
    WeightWatch watch;
    for (std::uint64_t pass = 0; pass < passes; ++pass) {
      std::vector<Weight> row;
      for (const double rate : rates) row.push_back({grown(rate, pass) * (rate == 0.5 ? 0.01f : 1)});
      watch.note(kPass * (pass + 1), 0.1, row);
    }
    return watch.growing_alone();
  };
  EXPECT_EQ(alone(3, {0.01, 0.64, 0, 0}), 1u);
  EXPECT_EQ(alone(14, {0.13, 0.12, 0.125, 0.12, -0.01, 0}), 0u);
  EXPECT_EQ(alone(14, {0.13, 0.12, 0.2, 0.12, 0.1}), kNoParameter);  // all
  EXPECT_EQ(alone(30, {0.01, 0.06, 0}), kNoParameter);               // slowly, as learning does
  EXPECT_EQ(alone(2, {0.01, 0.4, 0}), kNoParameter);                 // not far
  EXPECT_EQ(alone(5, {0.01, 0.5, 0}), kNoParameter);                 // a small one
  EXPECT_EQ(alone(1, {0.0}), kNoParameter);
  EXPECT_EQ(alone(9, {0.64}), kNoParameter);  // it has no other
}

TEST(WeightWatch, OneThatGrowsAloneIsWarnedOfEarlier) {
  const auto first = [](double of_others) {
    return warnings_of(
        40, 6, [&](std::uint64_t pass, std::size_t i) { return Weight{grown(i == 2 ? 0.25 : of_others, pass)}; });
  };
  const auto alone = first(0), together = first(0.2);
  ASSERT_FALSE(alone.empty());
  ASSERT_FALSE(together.empty());
  EXPECT_EQ(alone[0].parameter, 2u);
  EXPECT_LE(alone[0].step + 3 * kPass, together[0].step);
}

TEST(WeightWatch, LinearWeightGrowthIsLearning) {
  EXPECT_TRUE(warnings_of(200, 3, [](std::uint64_t pass, std::size_t) {
                return Weight{0.02f + 0.05f * static_cast<float>(pass)};
              }).empty());
}

TEST(WeightWatch, TinyBiasGrowingToOthersIsHealthy) {
  EXPECT_TRUE(warnings_of(60, 3, [](std::uint64_t pass, std::size_t i) {
                return Weight{i == 0 ? std::min(1e-6f * grown(0.8, pass), 1.0f) : 0.5f};
              }).empty());
}

TEST(WeightWatch, NothingThatChangesIsNoLearning) {
  const auto still = [](std::uint64_t pass, std::size_t) { return Weight{0.5f, pass == 0}; };
  const auto found = warnings_of(20, 3, still);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].what, What::kNoLearning);
  EXPECT_EQ(found[0].since, kPass);
  EXPECT_THAT(in_words(found[0], ""), HasSubstr("no parameter has changed since step 64"));
  const auto one_moves = [](std::uint64_t, std::size_t i) { return Weight{0.5f, i == 1}; };
  EXPECT_TRUE(warnings_of(20, 3, one_moves).empty());
}

TEST(WeightWatch, ValuesThatAreNotKnownAreLeftAlone) {
  EXPECT_TRUE(warnings_of(20, 2, [](std::uint64_t, std::size_t) { return Weight{-1, true}; }).empty());
}

}  // namespace
}  // namespace finitude::signal
