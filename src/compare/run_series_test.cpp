#include "compare/run_series.h"

#include <gtest/gtest.h>

#include <limits>

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

// The loss of steps 0 to 5, whose values in between are not known.
store::PointSeries one_point(double first, double last) {
  store::PointSeries loss{"loss", "SGD", "", {}};
  loss.points.resize(1);
  loss.points[0].add(0, 0, first);
  loss.points[0].add(5, 0, last);
  return loss;
}

TEST(RunSeries, PointsOfSeveralStepsAreComparedAtTheirEnds) {
  const store::PointSeries a = one_point(3, 2);
  store::PointSeries b{"loss", "SGD", "", {}};
  b.points.resize(2);
  b.points[0].add(0, 0, 3);
  b.points[0].add(3, 0, 2.5);
  b.points[1].add(4, 0, 2.4);
  b.points[1].add(5, 0, 1);
  const CourseJudgement found = judge_courses({{a}, {}}, {{b}, {}});
  EXPECT_EQ(found.step, 5U);
  EXPECT_EQ(found.differing.at(0).steps, 2U);
}

// Of so many applied steps.
std::vector<record::StepRecord> ring(std::uint64_t steps) {
  std::vector<record::StepRecord> records;
  for (std::uint64_t step = 0; step < steps; ++step)
    records.push_back({.step = step, .flags = record::kStepApplied, .loss = 1, .grad_absmax = 1, .lr = 0.1});
  return records;
}

Course course(std::uint64_t steps, double loss = 1) {
  return {{series("loss", std::vector<double>(steps, loss)), series("learning_rate", std::vector<double>(steps, 0.1))},
          {},
          ring(steps)};
}

TEST(RunSeries, AStepOfOneThatIsNotApplied) {
  const Course a = course(10);
  Course b = course(10);
  b.recent[6].flags = record::kStepVetoed | record::kStepAlarm;
  b.recent[6].loss = std::numeric_limits<double>::infinity();
  b.alarms = {{"SGD", "loss is Inf", 6}};
  const CourseJudgement found = judge_courses(a, b);
  ASSERT_TRUE(found.diverges);
  EXPECT_EQ(found.step, 6U);
  ASSERT_EQ(found.fates.size(), 1U);
  EXPECT_EQ(found.fates[0].a, "");
  EXPECT_EQ(found.fates[0].b, "not applied: loss is Inf");
  EXPECT_EQ(found.differing.at(0).level, Level::kDiffers);
  EXPECT_EQ(found.differing.at(0).first_step, 6U);
  EXPECT_FALSE(judge_courses(b, b).diverges);
}

TEST(RunSeries, StepsThatOneRingHasAloneSayNothingOfTheOther) {
  Course a = course(10), b = course(10);
  a.recent[2].flags = record::kStepScalerSkip;
  b.recent.erase(b.recent.begin(), b.recent.begin() + 5);
  EXPECT_FALSE(judge_courses(a, b).diverges);
  EXPECT_EQ(judge_courses(a, course(10)).fates.at(0).a, "skipped by the GradScaler");
}

// Whose number is whose is not known: they may be in another order where a GradScaler skips the first steps of one.
TEST(RunSeries, RecordsOfSeveralOptimizersAreOfNone) {
  Course a = course(10);
  a.series.push_back(a.series[1]);
  a.series.back().optimizer = "Adam";
  a.recent.push_back({.step = 9, .optimizer = 1, .flags = record::kStepApplied, .loss = 1, .lr = 0.2});
  Course b = a;
  b.recent[3].loss = 7;
  b.recent[4].flags = record::kStepScalerSkip;
  EXPECT_FALSE(judge_courses(a, b).diverges);
  Course one = course(10);  // against one whose records are known
  one.recent[4].flags = record::kStepScalerSkip;
  EXPECT_FALSE(judge_courses(one, b).diverges);
}

TEST(RunSeries, GradientsOfRecordsMayBeBounds) {
  Course a = course(10);
  a.series.push_back(series("gradient_absmax", {0.5}));
  Course b = a;
  for (record::StepRecord& step : b.recent) step.grad_absmax = 0.5;
  EXPECT_TRUE(judge_courses(a, b).differing.empty());
}

TEST(RunSeries, AnEndBeforeTheOther) {
  const CourseJudgement found = judge_courses(course(10), course(7));
  ASSERT_TRUE(found.diverges);
  EXPECT_EQ(found.step, 7U);
  ASSERT_EQ(found.ends.size(), 1U);
  EXPECT_EQ(found.ends[0].a, 9U);
  EXPECT_EQ(found.ends[0].b, 6U);
  EXPECT_TRUE(found.fates.empty());
}

TEST(RunSeries, AnotherStartIsNotTheDivergence) {
  const Course a = course(64, 1);
  Course b = course(64, 1.3);
  for (record::StepRecord& step : b.recent) step.loss = 1.3;
  CourseJudgement found = judge_courses(a, b);
  EXPECT_TRUE(found.diverges && found.differs_from_start);
  EXPECT_EQ(found.step, 0U);
  EXPECT_FALSE(found.differing.at(0).is_apart);
  for (std::uint64_t step = 40; step < 64; ++step) {  // from there on it is more than another start explains
    b.series[0].points[step] = {};
    b.series[0].points[step].add(step, 0, 5);
    b.series[0].points[step].step = step;
  }
  found = judge_courses(a, b);
  EXPECT_TRUE(found.differs_from_start && found.differing.at(0).is_apart);
  EXPECT_EQ(found.step, 40U);
  EXPECT_EQ(found.differing.at(0).min_b, 5);
  b.recent[20].flags = record::kStepVetoed;
  EXPECT_EQ(judge_courses(a, b).step, 20U);
}

TEST(RunSeries, AnotherStartOfOneOptimizerIsNotThatOfAnother) {
  const auto of_adam = [](std::vector<double> values) {
    store::PointSeries out = series("loss", values);
    out.optimizer = "Adam";
    return out;
  };
  const Course a{{series("loss", {3, 2, 1, 1}), of_adam({5, 4})}, {}};
  CourseJudgement found = judge_courses(a, {{series("loss", {3, 2, 1, 0.5}), of_adam({5.5, 4.4})}, {}});
  EXPECT_FALSE(found.differs_from_start);
  EXPECT_EQ(found.step, 3U);
  found = judge_courses(a, {{series("loss", {3, 2, 1, 1}), of_adam({5.5, 4.4})}, {}});
  EXPECT_TRUE(found.diverges && found.differs_from_start);
  EXPECT_EQ(found.step, 0U);
  found = judge_courses(a, {{series("loss", {2, 1, 0.9, 0.8}), of_adam({5.5, 4.4})}, {}});
  EXPECT_TRUE(found.diverges && found.differs_from_start);
  EXPECT_EQ(found.step, 0U);
}

// A first step without gradients says nothing of the start of a loss that was the same before.
TEST(RunSeries, ASeriesThatBeginsLaterIsNoOtherStart) {
  store::PointSeries norm_a = series("gradient_norm", {1, 1}), norm_b = series("gradient_norm", {1, 2});
  norm_a.points.erase(norm_a.points.begin());
  norm_b.points.erase(norm_b.points.begin());
  const CourseJudgement found =
      judge_courses({{series("loss", {3, 2}), norm_a}, {}}, {{series("loss", {3, 1}), norm_b}, {}});
  EXPECT_FALSE(found.differs_from_start);
  EXPECT_EQ(found.step, 1U);
}

TEST(RunSeries, ThePlaceIsAsExactAsTheStoresAre) {
  const store::PointSeries a = one_point(3, 2), b = one_point(3, 1);
  EXPECT_EQ(judge_courses({{a}, {}}, {{b}, {}}).differing.at(0).unknown, 4U);
}

}  // namespace
}  // namespace finitude::compare
