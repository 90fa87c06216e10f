#include "replay/tape_verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace finitude::replay {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// A run of a step whose loss was NaN and whose gradient was finite.
Played run(std::uint64_t loss, bool loss_bad, std::uint64_t gradient, bool gradient_bad) {
  Played played;
  played.calls = 2;
  played.outcomes = {{"loss", "loss", 1, loss, {true, 1, 0}, {true, loss_bad ? 1u : 0u, 0}, ""},
                     {"gradient", "w", 2, gradient, {true, 0, 0}, {true, 0, gradient_bad ? 4u : 0u}, ""}};
  return played;
}

Reported reported(const std::vector<Played>& runs) { return report_runs(runs, {}); }

TEST(Verdict, TheSameBitsNeedOneRun) {
  const std::vector<Played> runs{run(1, true, 2, false)};
  EXPECT_TRUE(is_decided(runs));
  EXPECT_EQ(judge(runs), Verdict::kIdentical);
  EXPECT_EQ(reported(runs).code, 0);
  EXPECT_THAT(reported(runs).text, StartsWith("identical: 2 of 2"));
}

TEST(Verdict, OtherBitsNeedThree) {
  std::vector<Played> runs{run(9, true, 2, false)};
  EXPECT_FALSE(is_decided(runs));
  runs.push_back(runs[0]);
  EXPECT_FALSE(is_decided(runs));
  runs.push_back(runs[0]);
  EXPECT_TRUE(is_decided(runs));
  EXPECT_EQ(judge(runs), Verdict::kSameClass);
  EXPECT_EQ(reported(runs).code, 0);
  EXPECT_THAT(reported(runs).text, HasSubstr("same class of failure"));
  EXPECT_THAT(reported(runs).text, StartsWith("differs: loss loss\n"));
}

TEST(Verdict, TheSameClassInBitsThatChange) {
  const std::vector<Played> runs{run(9, true, 2, false), run(8, true, 2, false), run(1, true, 2, false)};
  EXPECT_EQ(judge(runs), Verdict::kSameClass);
  EXPECT_THAT(reported(runs).text, HasSubstr("from run to run"));
}

TEST(Verdict, WhatIsFiniteEveryTimeWasTransient) {
  const std::vector<Played> runs{run(9, false, 2, false), run(9, false, 2, false), run(7, false, 2, false)};
  EXPECT_EQ(judge(runs), Verdict::kTransient);
  EXPECT_EQ(reported(runs).code, 1);
}

TEST(Verdict, OtherResultsThanRecordedEveryTime) {
  const std::vector<Played> runs(3, run(9, false, 5, true));
  EXPECT_EQ(judge(runs), Verdict::kPersistent);
  EXPECT_THAT(reported(runs).text, HasSubstr("gradient w instead of loss"));
}

TEST(Verdict, NowThisNowThat) {
  const std::vector<Played> runs{run(9, false, 2, false), run(9, true, 2, false), run(1, true, 2, false)};
  EXPECT_EQ(judge(runs), Verdict::kOrderDependent);
  EXPECT_EQ(reported(runs).code, 1);
}

TEST(Verdict, HealthyStepWithOtherBitsIsNoFailure) {
  Played healthy = run(9, false, 2, false);
  healthy.outcomes[0].expected_flaws = {true, 0, 0};
  std::vector<Played> runs(3, healthy);
  EXPECT_EQ(judge(runs), Verdict::kPersistent);
  runs[1].outcomes[0].got = 1;
  EXPECT_EQ(judge(runs), Verdict::kOrderDependent);
  EXPECT_EQ(reported(runs).code, 1);
}

TEST(Verdict, TapeThatNamesNothingNonFinite) {
  Played old = run(9, true, 2, false);
  for (PlayedOutcome& o : old.outcomes) o.expected_flaws = {};
  const std::vector<Played> runs(3, old);
  EXPECT_EQ(judge(runs), Verdict::kPersistent);
  EXPECT_THAT(reported(runs).text, HasSubstr("not recorded"));
}

TEST(Verdict, ExchangesIssuedAgainAreCountedAndNamed) {
  Played played = run(1, true, 2, false);
  played.exchanges = {{"c10d::allreduce_ at train.py:3", PlayedExchange::kSame, ""},
                      {"c10d::allreduce_ at train.py:5", PlayedExchange::kOtherBits, ""},
                      {"c10d::allreduce_ at train.py:7", PlayedExchange::kOtherBits, ""},
                      {"c10d::send at train.py:9", PlayedExchange::kUnread, ""},
                      {"c10d::new_ at train.py:11", PlayedExchange::kRecorded, "it is not known here"}};
  EXPECT_THAT(reported({played}).text,
              HasSubstr("4 of 5 collective operations were issued again: 1 gave the recorded bits, 2 other bits, first "
                        "c10d::allreduce_ at train.py:5; what 1 gave is not compared, as no call read it\n"
                        "1 of 5 collective operations took their recorded result: c10d::new_ at train.py:11 (it is not "
                        "known here)\n"));
  played.exchanges.resize(1);
  EXPECT_THAT(reported({played}).text, testing::EndsWith("1 of 1 collective operations were issued again: 1 gave the "
                                                         "recorded bits\n"));
}

TEST(Verdict, WhatCannotBeJudged) {
  Played missing;
  missing.missing = {"my::op (not registered here)"};
  EXPECT_TRUE(is_decided({missing}));
  EXPECT_EQ(reported({missing}).code, 4);
  Played failed;
  failed.why_not = "entry 3 of 8: no";
  EXPECT_TRUE(is_decided({failed}));
  EXPECT_EQ(reported({failed}).text, "not reproduced: entry 3 of 8: no\n");
  EXPECT_EQ(judge({Played{}}), Verdict::kNothing);
  EXPECT_EQ(reported({Played{}}).code, 4);
}

}  // namespace
}  // namespace finitude::replay
