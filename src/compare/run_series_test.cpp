#include "compare/run_series.h"

#include <gtest/gtest.h>

namespace finitude::compare {
namespace {

// Points of one step each, as a slow training has them.
store::PointSeries series(const std::string& quantity, const std::vector<double>& values,
                          const std::string& parameter = "") {
  store::PointSeries out{quantity, "SGD", parameter, {}};
  for (std::size_t i = 0; i < values.size(); ++i) {
    store::Point point;
    point.add(i, 0, values[i]);
    point.last_step = point.step = i;
    out.points.push_back(point);
  }
  return out;
}

TEST(RunSeries, FirstStepThatDiffers) {
  const Course a{{series("loss", {3, 2, 1}), series("gradient_norm", {1, 1, 1})}, {}};
  const Course b{{series("loss", {3, 2.5, 1}), series("gradient_norm", {1, 1, 1})}, {}};
  const CourseJudgement found = judge_courses(a, b);
  ASSERT_TRUE(found.diverges);
  EXPECT_EQ(found.step, 1U);
  ASSERT_EQ(found.differing.size(), 1U);
  EXPECT_EQ(found.differing[0].quantity, "loss");
  EXPECT_EQ(found.differing[0].last_same, 0U);
  EXPECT_FALSE(judge_courses(a, a).diverges);
}

TEST(RunSeries, RoundingIsNoDivergenceButLearningRatesHaveNone) {
  const Course a{{series("loss", {3, 2, 1})}, {}}, b{{series("loss", {3, 2 + 1e-6, 1.01})}, {}};
  const CourseJudgement found = judge_courses(a, b);
  EXPECT_FALSE(found.diverges);
  EXPECT_EQ(found.differing.at(0).level, Level::kNoise);
  EXPECT_EQ(found.differing.at(0).largest_step, 2U);
  const Course rate_a{{series("learning_rate", {0.1, 0.1})}, {}},
      rate_b{{series("learning_rate", {0.1, 0.1000001})}, {}};
  EXPECT_TRUE(judge_courses(rate_a, rate_b).diverges);
}

TEST(RunSeries, OtherRowsComeBeforeTheLoss) {
  const Course a{{series("loss", {3, 2, 1})}, {{"SGD", 0, 0, "a"}, {"SGD", 1, 0, "b"}}};
  const Course b{{series("loss", {3, 2, 1.5})}, {{"SGD", 0, 0, "a"}, {"SGD", 1, 0, "c"}}};
  const CourseJudgement found = judge_courses(a, b);
  EXPECT_TRUE(found.has_other_data);
  EXPECT_EQ(found.step, 1U);
}

TEST(RunSeries, PointsOfSeveralStepsAreComparedAtTheirEnds) {
  store::PointSeries a{"loss", "SGD", "", {}}, b = a;
  a.points.resize(1);
  a.points[0].add(0, 0, 3);
  a.points[0].add(5, 0, 2);
  b.points.resize(2);
  b.points[0].add(0, 0, 3);
  b.points[0].add(3, 0, 2.5);
  b.points[1].add(4, 0, 2.4);
  b.points[1].add(5, 0, 1);
  const CourseJudgement found = judge_courses({{a}, {}}, {{b}, {}});
  EXPECT_EQ(found.step, 5U);
  EXPECT_EQ(found.differing.at(0).steps, 2U);
}

}  // namespace
}  // namespace finitude::compare
