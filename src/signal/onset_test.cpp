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

TEST(Onset, ValuesBeforeANonFiniteDoNotCount) {
  std::vector<double> values = {1, 2, 4, 8, std::numeric_limits<double>::quiet_NaN()};
  for (int i = 0; i < 8; ++i) values.push_back(std::pow(3.0, i));
  const auto growth = growth_to_end(values);
  ASSERT_TRUE(growth);
  EXPECT_GE(growth->at, 5u);
  EXPECT_FALSE(growth->is_older);
}

TEST(Onset, AJumpIsNoGrowth) {
  std::vector<double> values(40, 1.0);
  values.back() = 1e6;
  EXPECT_FALSE(growth_to_end(values));
}

}  // namespace
}  // namespace finitude::signal
