#include "decide/scaler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#if __has_include(<rapidcheck/gtest.h>)
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>
#define FINITUDE_HAS_RAPIDCHECK
#endif

namespace finitude::decide {
namespace {

TEST(ScalerSkips, TwentyInARowAreCalibration) {
  ScalerSkips skips;
  for (std::uint32_t i = 1; i <= 20; ++i) {
    const auto verdict = skips.on_skip(0, 5, 1024.0);
    EXPECT_FALSE(verdict.alarm) << i;
    EXPECT_EQ(verdict.in_a_row, i);
  }
  const auto verdict = skips.on_skip(0, 5, 1024.0);
  EXPECT_TRUE(verdict.alarm);
  EXPECT_EQ(verdict.in_a_row, 21u);
}

TEST(ScalerSkips, TheNextAlarmCountsTheWholeRow) {
  ScalerSkips skips;
  int alarms = 0;
  for (int i = 0; i < 63; ++i) alarms += skips.on_skip(0, 0, 2.0).alarm;
  EXPECT_EQ(alarms, 3);
  EXPECT_EQ(skips.in_a_row(0), 63u);
}

TEST(ScalerSkips, AStepThatWasTakenEndsTheRow) {
  ScalerSkips skips;
  for (std::uint64_t step = 0; step < 10; ++step) {
    for (int i = 0; i < 20; ++i) EXPECT_FALSE(skips.on_skip(0, step, 2.0).alarm);
  }
  EXPECT_EQ(skips.in_a_row(0), 20u);
}

TEST(ScalerSkips, TheScaleStaysAtLeastOne) {
  for (const double scale : {0.5, 0.0, -1.0, std::nextafter(1.0, 0.0), std::nan("")}) {
    EXPECT_TRUE(ScalerSkips().on_skip(0, 0, scale).alarm) << scale;
  }
  for (const double scale : {1.0, 65536.0, std::numeric_limits<double>::infinity()}) {
    EXPECT_FALSE(ScalerSkips().on_skip(0, 0, scale).alarm) << scale;
  }
  EXPECT_FALSE(ScalerSkips().on_skip(0, 0, std::nullopt).alarm);
}

TEST(ScalerSkips, OptimizersAreCountedApart) {
  ScalerSkips skips;
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(skips.on_skip(0, 3, 2.0).alarm);
    EXPECT_FALSE(skips.on_skip(1, 3, 2.0).alarm);
  }
  EXPECT_TRUE(skips.on_skip(0, 3, 2.0).alarm);
  EXPECT_EQ(skips.in_a_row(0), 21u);
  EXPECT_EQ(skips.in_a_row(1), 20u);
  EXPECT_EQ(skips.in_a_row(2), 0u);
}

#ifdef FINITUDE_HAS_RAPIDCHECK

RC_GTEST_PROP(ScalerSkipsProperty, AlarmsAtEveryTwentyFirstOfARowAndNowhereElse, ()) {
  ScalerSkips skips;
  std::uint64_t step = 0;
  std::uint32_t row = 0;
  for (int i = 0; i < 200; ++i) {
    if (*rc::gen::weightedElement<bool>({{1, true}, {30, false}})) {
      ++step;
      row = 0;
    }
    const auto verdict = skips.on_skip(7, step, 1.0);
    ++row;
    RC_ASSERT(verdict.in_a_row == row);
    RC_ASSERT(verdict.alarm == (row % 21 == 0));
  }
}

#endif

}  // namespace
}  // namespace finitude::decide
