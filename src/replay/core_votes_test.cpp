#include "replay/core_votes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace finitude::replay {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::uint64_t kLoss = 1, kGradient = 2, kOther = 9;

CorePlay good() { return {{kLoss, kGradient}, ""}; }
CorePlay bad() { return {{kLoss, kOther}, ""}; }
CorePlay failed() { return {{}, "ended by signal 11"}; }

CoreTask task(std::size_t times = 4) { return {{"loss", "gradient w"}, {kLoss, kGradient}, times}; }

std::vector<CorePlays> cores(std::vector<std::vector<CorePlay>> plays) {
  std::vector<CorePlays> all;
  for (auto& of_core : plays) all.push_back({"core " + std::to_string(all.size()), std::move(of_core)});
  return all;
}

std::vector<CorePlay> times(CorePlay play, std::size_t count) { return std::vector<CorePlay>(count, std::move(play)); }

TEST(CoreVotes, AllAgreeInOneLine) {
  const Reported reported = judge_cores(cores({times(good(), 4), times(good(), 4)}), task());
  EXPECT_EQ(reported.code, 0);
  EXPECT_EQ(reported.text,
            "all 2 cores agree: 2 results with the same bits in each of their 4 plays, as in the recorded run\n");
  CoreTask elsewhere = task();
  elsewhere.recorded = {7, 7};
  EXPECT_THAT(judge_cores(cores({times(good(), 4), times(good(), 4)}), elsewhere).text,
              HasSubstr("not those of the recorded run"));
}

TEST(CoreVotes, TheOddCoreIsNamedWithWhatDiffersAndHowOften) {
  const Reported reported =
      judge_cores(cores({times(good(), 4), times(good(), 4), {good(), bad(), bad(), bad()}, times(good(), 4)}), task());
  EXPECT_EQ(reported.code, 1);
  EXPECT_EQ(reported.text,
            "core 2: gradient w differs in 3 of 4 plays\n"
            "the other 3 cores agree: 2 results with the same bits in each of their 4 plays, as in the recorded run\n");
}

TEST(CoreVotes, OnePlayOfManyIsEnough) {
  const Reported reported = judge_cores(cores({times(good(), 4), {good(), good(), good(), bad()}}), task());
  EXPECT_EQ(reported.code, 1);
  EXPECT_THAT(reported.text, HasSubstr("core 1: gradient w differs in 1 of 4 plays\nthe other 1 core: "));
}

TEST(CoreVotes, AFailureOnOneCoreIsThatCores) {
  const Reported reported = judge_cores(
      cores({times(good(), 2), {good(), failed()}, {bad(), failed()}, times(good(), 2), times(good(), 2)}), task(2));
  EXPECT_EQ(reported.code, 1);
  EXPECT_THAT(reported.text, HasSubstr("core 1: 1 of 2 plays failed: ended by signal 11\n"));
  EXPECT_THAT(reported.text, HasSubstr("core 2: gradient w differs in 1 of 2 plays, and 1 of 2 plays failed"));
  EXPECT_EQ(judge_cores(cores({{failed()}, {failed()}}), task(1)).code, 4);
}

TEST(CoreVotes, ATieIsSaidAsSuch) {
  const Reported two = judge_cores(cores({times(good(), 2), times(bad(), 2)}), task(2));
  EXPECT_EQ(two.code, 1);
  EXPECT_THAT(two.text, HasSubstr("no bits have a majority"));
  EXPECT_THAT(two.text, HasSubstr("gradient w differ from core"));
  EXPECT_THAT(two.text, Not(HasSubstr("the other")));
  const Reported three = judge_cores(cores({{good()}, {bad()}, {{{kOther, kOther}, ""}}}), task(1));
  EXPECT_THAT(three.text, HasSubstr("no bits have a majority"));
  const Reported split = judge_cores(cores({{good(), bad()}, times(good(), 2)}), task(2));
  EXPECT_THAT(split.text, HasSubstr("core 0: no bits in more than half of its plays"));
}

TEST(CoreVotes, AStepThatIsNotDeterministicSaysNothingOfACore) {
  const Reported reported = judge_cores(cores({{good(), bad()}, {bad(), good()}}), task(2));
  EXPECT_EQ(reported.code, 4);
  EXPECT_THAT(reported.text, HasSubstr("the step itself is not deterministic"));
}

TEST(CoreVotes, WhatWasNotPlayedIsSaid) {
  const Reported agree = judge_cores(cores({times(good(), 4), times(good(), 2), {}}), task());
  EXPECT_EQ(agree.code, 4);
  EXPECT_THAT(agree.text, HasSubstr("all 2 cores agree"));
  EXPECT_THAT(agree.text, HasSubstr("not played to the end: core 1 (2 of 4 plays), core 2 (0 of 4 plays)\n"));
  const Reported odd = judge_cores(cores({times(good(), 4), times(good(), 4), {bad()}}), task());
  EXPECT_EQ(odd.code, 1);
  EXPECT_EQ(judge_cores(cores({{}, {}}), task()).code, 4);
}

TEST(CoreVotes, OneCoreIsComparedWithItself) {
  const Reported alone = judge_cores(cores({times(good(), 4)}), task());
  EXPECT_EQ(alone.code, 0);
  EXPECT_THAT(alone.text, HasSubstr("There is no other core to compare it with"));
  EXPECT_EQ(judge_cores(cores({{good(), good(), good(), bad()}}), task()).code, 1);
}

}  // namespace
}  // namespace finitude::replay
