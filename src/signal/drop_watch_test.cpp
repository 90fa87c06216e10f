#include "signal/drop_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace finitude::signal {
namespace {

using ::testing::HasSubstr;

struct DroppingTraining {
  DropWatch watch;
  std::uint64_t step = 0;
  std::vector<Warning> warnings;

  void steps(int count, std::uint64_t dropped = 0, std::uint64_t by_scaler = 0) {
    for (; count > 0; --count, ++step)
      if (const auto one = watch.note(step, 0.1, dropped, by_scaler)) warnings.push_back(*one);
  }
};

TEST(DropWatch, ATenthOfTheStepsIsSaidOnce) {
  DroppingTraining run;
  run.steps(200);
  for (int i = 0; i < 50; ++i) {
    run.steps(1, 1);
    run.steps(7);
  }
  ASSERT_EQ(run.warnings.size(), 1u);
  const Warning& first = run.warnings.front();
  EXPECT_EQ(first.what, What::kDropped);
  EXPECT_EQ(first.since, 200u);
  EXPECT_EQ(first.step, 272u);  // the tenth
  EXPECT_EQ(first.to, 10);
  EXPECT_EQ(first.layers, 0u);
  EXPECT_THAT(in_words(first, ""), HasSubstr("10 of the last 100 steps were not applied, since step 200: the program "
                                             "dropped 10 of them"));
}

TEST(DropWatch, SaidAgainWhenTenfold) {
  DroppingTraining run;
  run.steps(10);
  run.steps(300, 1);
  ASSERT_EQ(run.warnings.size(), 2u);  // after 10 and 100 of them
}

TEST(DropWatch, AFewAndThoseOfACalibrationAreUsual) {
  DroppingTraining run;
  for (int i = 0; i < 50; ++i) {
    run.steps(1, 1);
    run.steps(19);
  }
  EXPECT_TRUE(run.warnings.empty());
  DroppingTraining scaled;
  scaled.steps(1, 0, 16);
  scaled.steps(2000);
  for (int i = 0; i < 10; ++i) {
    scaled.steps(1, 0, 1);
    scaled.steps(2000);
  }
  EXPECT_TRUE(scaled.warnings.empty());
}

TEST(DropWatch, AScalerThatSkipsAllTheTimeIsSaid) {
  DroppingTraining run;
  run.steps(150);
  for (int i = 0; i < 20; ++i) {
    run.steps(1, 0, 1);
    run.steps(4);
  }
  ASSERT_EQ(run.warnings.size(), 1u);
  EXPECT_EQ(run.warnings.front().layers, 10u);
  EXPECT_THAT(in_words(run.warnings.front(), ""), HasSubstr("a GradScaler skipped 10"));
}

}  // namespace
}  // namespace finitude::signal
