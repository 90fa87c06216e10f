#include "signal/onset.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace finitude::signal {
namespace {

// The fit as it is defined, every onset by itself.
double explained_by_definition(const std::vector<double>& y, std::size_t b) {
  const auto n = static_cast<double>(y.size());
  double mean_y = 0, mean_x = 0;
  for (std::size_t t = 0; t < y.size(); ++t) {
    mean_y += y[t] / n;
    mean_x += (t > b ? static_cast<double>(t - b) : 0) / n;
  }
  double xy = 0, xx = 0, yy = 0;
  for (std::size_t t = 0; t < y.size(); ++t) {
    const double x = (t > b ? static_cast<double>(t - b) : 0) - mean_x;
    xy += x * (y[t] - mean_y);
    xx += x * x;
    yy += (y[t] - mean_y) * (y[t] - mean_y);
  }
  return xy * xy / xx / yy;
}

TEST(Onset, FitIsTheBestOfAllOnsets) {
  std::mt19937 random(7);
  std::normal_distribution<double> noise;
  for (int run = 0; run < 50; ++run) {
    std::vector<double> y;
    for (int t = 0; t < 40; ++t) y.push_back(noise(random) + (t > run % 40 ? 0.3 * (t - run % 40) : 0));
    const auto fit = fit_hinge(y, 3);
    ASSERT_TRUE(fit);
    EXPECT_NEAR(fit->explained, explained_by_definition(y, fit->at), 1e-9);
    for (std::size_t b = 0; b + 4 <= y.size(); ++b) EXPECT_LE(explained_by_definition(y, b), fit->explained + 1e-9);
  }
}

TEST(Onset, NothingIsFittedToAConstant) {
  EXPECT_FALSE(fit_hinge(std::vector<double>(20, 3.0), 3));
  EXPECT_FALSE(fit_hinge(std::vector<double>{1, 2, 3}, 3));
  EXPECT_FALSE(fit_hinge({}, 3));
}

TEST(Onset, GrowthBeginsWhereTheLevelEnds) {
  std::vector<double> values(50, 2.0);
  for (int i = 1; i <= 30; ++i) values.push_back(2 * std::pow(1.5, i));
  const auto growth = growth_to_end(values);
  ASSERT_TRUE(growth);
  EXPECT_EQ(growth->at, 49u);
  EXPECT_NEAR(growth->factor, 1.5, 1e-6);
  EXPECT_FALSE(growth->is_older);
}

TEST(Onset, GrowthThatSpeedsUpBeginsWithItsSlowSteps) {
  std::vector<double> values(50, 2);
  for (int i = 1; i <= 30; ++i) values.push_back(values.back() * (i <= 3 ? 6 : 10));
  const auto growth = growth_to_end(values);
  ASSERT_TRUE(growth);
  EXPECT_EQ(growth->at, 49u);
  EXPECT_EQ(growth->from, 2);
}

TEST(Onset, ValuesBeforeANonFiniteDoNotCount) {
  std::vector<double> values = {1, 2, 4, 8, std::numeric_limits<double>::quiet_NaN()};
  for (int i = 0; i < 8; ++i) values.push_back(std::pow(3.0, i));
  const auto growth = growth_to_end(values);
  ASSERT_TRUE(growth);
  EXPECT_GE(growth->at, 5u);
  EXPECT_FALSE(growth->is_older);
}

// Of values from 100 steps of which the last 60 grow; noise: of their logarithms.
std::vector<double> grown(double noise, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> scatter(0, noise > 0 ? noise : 1);
  std::vector<double> values;
  for (int i = -39; i <= 60; ++i)
    values.push_back(2 * std::pow(1.2, std::max(i, 0)) * std::exp(noise > 0 ? scatter(random) : 0));
  return values;
}

TEST(Onset, ASpikeAnywhereHardlyMovesIt) {
  for (const double noise : {0.0, 0.1, 0.3}) {
    const std::vector<double> values = grown(noise, 5);
    const auto without = growth_to_end(values);
    ASSERT_TRUE(without);
    EXPECT_NEAR(static_cast<double>(without->at), 39, noise > 0 ? 4 : 0);
    for (std::size_t at = 0; at < values.size(); ++at) {
      for (const double times : {1e-30, 1e-6, 0.01, 3.0, 30.0, 1e4, 1e6, 1e30}) {
        std::vector<double> spiked = values;
        spiked[at] *= times;
        const auto with = growth_to_end(spiked);
        ASSERT_TRUE(with) << noise << ": " << times << " at " << at;
        EXPECT_NEAR(static_cast<double>(with->at), static_cast<double>(without->at), 3) << times << " at " << at;
        EXPECT_NEAR(std::log(with->factor), std::log(without->factor), 0.1 * std::log(without->factor));
        EXPECT_LT(with->from, 10) << times << " at " << at;
      }
    }
  }
}

TEST(Onset, SpikesAreRemovedAndNothingElse) {
  const auto after = [](std::vector<double> values) {
    std::vector<double> room(values.size());
    remove_spikes(values, room);
    return values;
  };
  std::vector<double> level(20, 1.0), line, shift(20, 1.0), noisy;
  std::mt19937 random(3);
  std::normal_distribution<double> noise;
  for (int i = 0; i < 20; ++i) {
    line.push_back(i < 12 ? 0 : 0.3 * (i - 11));
    shift[static_cast<std::size_t>(i)] += i > 8 ? 7 : 0;
    noisy.push_back(noise(random));
  }
  for (const auto& values : {level, line, shift, noisy, std::vector<double>{1, 9, 1, 1}})
    EXPECT_EQ(after(values), values);
  for (std::size_t at = 0; at < level.size(); ++at) {
    std::vector<double> spiked = level;
    spiked[at] = 50;
    EXPECT_EQ(after(spiked), level) << at;
    if (at < 2 || at + 3 >= level.size()) continue;  // of two at an end there is nothing behind them
    spiked[at + 1] = 60;
    EXPECT_EQ(after(spiked), level) << at;
  }
}

TEST(Onset, AJumpIsNoGrowth) {
  std::vector<double> values(40, 1.0);
  values.back() = 1e6;
  EXPECT_FALSE(growth_to_end(values));
}

}  // namespace
}  // namespace finitude::signal
