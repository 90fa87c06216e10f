#include "store/series.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>

namespace finitude::store {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// As a writer does, with so many points at most.
std::vector<Point> down_sampled(const std::vector<double>& values, std::size_t most, Interval interval,
                                double seconds) {
  Series series(interval);
  std::vector<Point> points;
  Point whole;
  for (std::size_t step = 0; step < values.size(); ++step) {
    if (!series.add(step, static_cast<double>(step) * seconds, values[step], &whole)) continue;
    points.push_back(whole);
    if (points.size() + 1 < most) continue;
    points = merged_in_pairs(points);
    series.coarsen();
  }
  if (!series.is_empty()) points.push_back(series.open());
  return points;
}

// What the points say of their steps is what the values say, and no step is missing.
void expect_of(const std::vector<double>& values, const std::vector<Point>& points) {
  std::uint64_t next = 0;
  for (const Point& point : points) {
    RC_ASSERT(point.step == next);
    RC_ASSERT(point.last_step >= point.step);
    Point expected;
    expected.step = point.step;
    for (std::uint64_t step = point.step; step <= point.last_step; ++step) expected.add(step, point.time, values[step]);
    RC_ASSERT(std::isnan(point.first) == std::isnan(expected.first));
    if (!std::isnan(point.first)) RC_ASSERT(point == expected);
    next = point.last_step + 1;
  }
  RC_ASSERT(next == values.size());
}

RC_GTEST_PROP(StoreSeries, PointsSayWhatTheirStepsSay, ()) {
  auto values = *rc::gen::container<std::vector<double>>(
      rc::gen::element(0.0, -1.5, 2.0, 1e300, -1e-300, kNaN, std::numeric_limits<double>::infinity()));
  const auto most = *rc::gen::inRange<std::size_t>(3, 20);
  const auto steps = *rc::gen::inRange<std::uint64_t>(1, 5);
  const auto first = *rc::gen::inRange<std::uint64_t>(0, 30);
  const std::vector<Point> points =
      down_sampled(values, most, {steps, 0.05, first}, *rc::gen::element(0.01, 0.04, 3.0));
  RC_ASSERT(points.size() <= most);
  expect_of(values, points);
}

TEST(StoreSeries, ALongOneStaysBounded) {
  std::vector<double> values(200'000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<double>(i));
  values[123'456] = 1e6;
  const std::vector<Point> points = down_sampled(values, kMostPoints, {1, 0.05}, 0.06);
  EXPECT_LE(points.size(), kMostPoints);
  EXPECT_GT(points.size(), kMostPoints / 3);
  EXPECT_EQ(std::count_if(points.begin(), points.end(), [](const Point& p) { return p.max == 1e6; }), 1);
}

TEST(StoreSeries, AStepThatComesTwiceIsLeftOut) {
  Series series({1, 0});
  Point whole;
  EXPECT_FALSE(series.add(5, 1, 1.0, &whole));
  EXPECT_FALSE(series.add(5, 2, 9.0, &whole));
  EXPECT_FALSE(series.add(4, 3, 9.0, &whole));
  EXPECT_TRUE(series.add(6, 4, 2.0, &whole));
  EXPECT_EQ(whole.step, 5u);
  EXPECT_EQ(whole.max, 1.0);
}

TEST(StoreSeries, TheFirstStepsHaveAPointEach) {
  const std::vector<double> values(100, 1.0);
  const std::vector<Point> points = down_sampled(values, kMostPoints, {1, 0.05, 30}, 0.001);
  ASSERT_EQ(points.size(), 32u);  // steps 0 to 29; 30 to 79; 80 to 99
  EXPECT_EQ(points[29].last_step, 29u);
  EXPECT_EQ(points[30].last_step, 79u);
}

TEST(StoreSeries, APointCoversItsInterval) {
  Series series({4, 1.0});
  Point whole;
  std::vector<Point> points;
  for (std::uint64_t step = 0; step < 100; ++step)
    if (series.add(step, static_cast<double>(step) * 0.1, 1.0, &whole)) points.push_back(whole);
  ASSERT_FALSE(points.empty());
  for (const Point& point : points) EXPECT_GE(point.last_step - point.step + 1, 10u);  // 1 s
}

}  // namespace
}  // namespace finitude::store
