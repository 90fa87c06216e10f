#include "signal/headroom_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "signal/horizon.h"

namespace finitude::signal {
namespace {

constexpr double kHalf = 65504, kSingle = 3.4028234663852886e38;

// Two parameters, of which the second has that largest magnitude and limit.
std::vector<Warning> warnings_of(std::uint64_t steps, double limit, const std::function<double(std::uint64_t)>& value) {
  HeadroomWatch watch;
  std::vector<Warning> all;
  const std::vector<double> limits = {kSingle, limit};
  for (std::uint64_t i = 0; i < steps; ++i) {
    const std::vector<float> gradients = {1e6f, static_cast<float>(value(i))};
    for (const Warning& w : watch.note(i, 0.1, std::max(1e6, value(i)), std::min(kSingle, limit), gradients, limits))
      all.push_back(w);
  }
  return all;
}

TEST(HeadroomWatch, FewBitsAreSaidOnce) {
  const auto found = warnings_of(100, kHalf, [](std::uint64_t) { return 8000.0; });
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found.front().what, What::kHeadroom);
  EXPECT_EQ(found.front().parameter, 1u);
  EXPECT_EQ(found.front().step, 3u);
  EXPECT_FALSE(found.front().horizon);
  EXPECT_THAT(in_words(found.front(), "w"), ::testing::HasSubstr("8e+03, 3.03 bits below the largest number"));
}

TEST(HeadroomWatch, ASteadyGrowthIsSaidAheadOfTheLimit) {
  std::mt19937 random(5);
  std::normal_distribution<double> noise(0, 0.05);
  const double rate = 1.02;
  const auto found =
      warnings_of(400, kHalf, [&](std::uint64_t i) { return 20 * std::pow(rate, i) * std::exp(noise(random)); });
  ASSERT_FALSE(found.empty());
  const Warning& w = found.front();
  ASSERT_TRUE(w.horizon);
  const double left = std::log(kHalf / 20) / std::log(rate) - static_cast<double>(w.step);
  EXPECT_GT(left, 100);
  EXPECT_LE((*w.horizon)[0], left);
  EXPECT_GE((*w.horizon)[1], left);
  EXPECT_NEAR(w.factor, rate, 0.005);
}

TEST(HeadroomWatch, FarFromTheLimitNothingIsSaid) {
  EXPECT_TRUE(warnings_of(300, kSingle, [](std::uint64_t i) { return std::pow(1.05, i); }).empty());
  EXPECT_TRUE(warnings_of(300, kHalf, [](std::uint64_t i) { return i % 7 == 0 ? 30000.0 : 10.0; }).empty());
  EXPECT_TRUE(warnings_of(300, kHalf, [](std::uint64_t) { return 300.0; }).empty());
}

// What the interval promises, of growths with noise of several kinds: where there is a number, the step is mostly in
// it.
TEST(Horizon, IntervalsHoldOrAreLeftOut) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal(0, 1);
  int given = 0, right = 0, of_noise = 0;
  for (int trial = 0; trial < 600; ++trial) {
    const double rate = std::exp(normal(random) - 4), walk = rate * std::exp(normal(random)), white = 0.02;
    std::vector<double> values;
    double y = 0;
    for (int i = 0; i < 48; ++i) {
      y += rate + walk * normal(random);
      values.push_back(y + white * normal(random));
    }
    const auto rates = rates_of(values);
    const double goal = y + 24 * rate;
    if (!rates) continue;
    const auto horizon = horizon_between(goal - values.back(), goal - values.back(), *rates);
    if (!horizon) continue;
    std::uint64_t steps = 0;
    for (; y < goal && steps < 2000; ++steps) y += rate + walk * normal(random);
    ++given;
    right += steps + 1 >= (*horizon)[0] && steps <= (*horizon)[1] + 1;
  }
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<double> values;
    for (int i = 0; i < 48; ++i) values.push_back(normal(random));
    if (const auto rates = rates_of(values)) of_noise += horizon_between(20, 20, *rates).has_value();
  }
  EXPECT_GT(given, 200);
  EXPECT_GT(right, given * 6 / 10) << right << " of " << given;
  EXPECT_LT(of_noise, 30);
  RecordProperty("given", given);
  RecordProperty("right", right);
}

}  // namespace
}  // namespace finitude::signal
