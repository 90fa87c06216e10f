#include "decide/policy.h"

#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <utility>
#include <vector>

#if __has_include(<rapidcheck/gtest.h>)
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>
#define FINITUDE_HAS_RAPIDCHECK
#endif

namespace finitude::decide {
namespace {

constexpr Policy kPolicies[] = {Policy::kStop, Policy::kSkip, Policy::kWarn, Policy::kRaise, Policy::kRollback};

TEST(Policy, NamesComeBack) {
  for (const Policy policy : kPolicies) EXPECT_EQ(parse_policy(name(policy)), policy);
  for (const char* wrong : {"", "Stop", "stop ", "roll", "rollbackx"}) EXPECT_EQ(parse_policy(wrong), std::nullopt);
}

TEST(Policy, WhatEachDoesAtFirst) {
  const std::map<Policy, Action> expected = {{Policy::kStop, Action::kStop},
                                             {Policy::kSkip, Action::kSkip},
                                             {Policy::kWarn, Action::kApply},
                                             {Policy::kRaise, Action::kRaise},
                                             {Policy::kRollback, Action::kRollBack}};
  for (const auto& [policy, action] : expected) {
    EXPECT_EQ(PolicyMachine(policy, {10}).on_alarm(0, 4, false), action) << name(policy);
  }
}

TEST(Policy, AHarmlessAlarmStopsNothing) {
  for (const Policy policy : {Policy::kStop, Policy::kRaise, Policy::kWarn}) {
    EXPECT_EQ(PolicyMachine(policy, {10}).on_alarm(0, 4, true), Action::kApply) << name(policy);
  }
  EXPECT_EQ(PolicyMachine(Policy::kSkip, {10}).on_alarm(0, 4, true), Action::kSkip);
  EXPECT_EQ(PolicyMachine(Policy::kRollback, {10}).on_alarm(0, 4, true), Action::kRollBack);
}

TEST(Policy, TooManyHarmlessOnesInARowDo) {
  for (const auto& [policy, last] : {std::pair{Policy::kStop, Action::kStop}, {Policy::kRaise, Action::kRaise}}) {
    PolicyMachine machine(policy, {3});
    for (std::uint64_t step = 7; step < 10; ++step) EXPECT_EQ(machine.on_alarm(0, step, true), Action::kApply);
    EXPECT_EQ(machine.on_alarm(0, 10, true), last);
  }
}

TEST(Policy, SkipStopsAfterMaxSkipsInARow) {
  for (const Policy policy : {Policy::kSkip, Policy::kRollback}) {
    PolicyMachine machine(policy, {4});
    for (std::uint64_t step = 3; step < 7; ++step) EXPECT_FALSE(ends(machine.on_alarm(0, step, false))) << step;
    EXPECT_EQ(machine.on_alarm(0, 7, false), Action::kStop);
    EXPECT_EQ(machine.on_alarm(0, 8, false), Action::kStop);  // a script that swallowed the error meets it again
    EXPECT_NE(machine.on_alarm(0, 10, false), Action::kStop);
  }
  EXPECT_EQ(PolicyMachine(Policy::kSkip, {0}).on_alarm(0, 3, false), Action::kStop);
}

TEST(Policy, AGoodStepBetweenStartsTheCountAgain) {
  PolicyMachine machine(Policy::kSkip, {2});
  for (const std::uint64_t step : {1, 2, 4, 5, 7, 8}) EXPECT_EQ(machine.on_alarm(0, step, false), Action::kSkip);
}

TEST(Policy, ConsecutiveAlarmsLeadToTheNextPolicy) {
  PolicyMachine machine(Policy::kWarn, {.in_a_row = 2}, {Policy::kSkip, Policy::kRollback});
  const std::pair<std::uint64_t, Action> expected[] = {
      {5, Action::kApply}, {6, Action::kApply},    {6, Action::kApply},     {7, Action::kSkip},
      {8, Action::kSkip},  {9, Action::kRollBack}, {10, Action::kRollBack}, {11, Action::kStop}};
  for (const auto& [step, action] : expected) EXPECT_EQ(machine.on_alarm(0, step, false), action) << step;
  EXPECT_EQ(machine.beyond(0), "");
  EXPECT_EQ(machine.on_alarm(1, 11, false), Action::kApply);  // another optimizer
  for (const std::uint64_t step : {12, 13}) machine.on_alarm(1, step, false);
  EXPECT_EQ(machine.beyond(1), "bad steps in a row: more than 2; from here on skip");
}

TEST(Policy, TheFirstPolicyHoldsAgainAfterGoodSteps) {
  PolicyMachine machine(Policy::kSkip, {.in_a_row = 1, .cool_down = 20}, {Policy::kRollback});
  const std::pair<std::uint64_t, Action> expected[] = {
      {5, Action::kSkip},  {6, Action::kRollBack},  {10, Action::kRollBack}, {30, Action::kRollBack},
      {51, Action::kSkip}, {52, Action::kRollBack}, {3, Action::kRollBack}};  // again from a checkpoint
  for (const auto& [step, action] : expected) EXPECT_EQ(machine.on_alarm(0, step, false), action) << step;
}

TEST(Policy, NoPolicyFollowsWhenNoRowIsAllowed) {
  PolicyMachine machine(Policy::kSkip, {.in_a_row = 0}, {Policy::kRollback});
  EXPECT_EQ(machine.on_alarm(0, 5, false), Action::kStop);
}

TEST(Policy, TotalsEndAnyOrderOfPolicies) {
  PolicyMachine machine(Policy::kSkip, {.in_a_row = 9, .total = 2}, {Policy::kRollback});
  EXPECT_EQ(machine.on_alarm(0, 5, false), Action::kSkip);
  EXPECT_EQ(machine.on_alarm(0, 6, false), Action::kSkip);
  EXPECT_EQ(machine.on_alarm(0, 7, false), Action::kStop);
}

TEST(Policy, TheFirstBadStepOfARowLowersTheRate) {
  PolicyMachine machine(Policy::kSkip, {.in_a_row = 2}, {Policy::kLowerRate, Policy::kRollback, Policy::kStop});
  const std::pair<std::uint64_t, Action> expected[] = {
      {5, Action::kSkip},      {6, Action::kSkip},       {7, Action::kLowerRate}, {7, Action::kSkip},
      {8, Action::kSkip},      {20, Action::kLowerRate}, {21, Action::kSkip},     {22, Action::kRollBack},
      {23, Action::kRollBack}, {24, Action::kStop}};
  for (const auto& [step, action] : expected) EXPECT_EQ(machine.on_alarm(0, step, false), action) << step;
}

// The second machine begins at step 0, as a process that is started again.
TEST(Policy, AnotherMachineContinuesTheCounts) {
  const Limits limits{.in_a_row = 3, .total = 9, .share = 0.2, .window = 20};
  const std::vector<Policy> then = {Policy::kLowerRate, Policy::kRollback};
  PolicyMachine first(Policy::kSkip, limits, then), whole(Policy::kSkip, limits, then);
  for (const std::uint64_t step : {0, 18, 19, 20}) {
    first.on_alarm(1, step, false);
    whole.on_alarm(1, step, false);
  }
  PolicyMachine second(Policy::kSkip, limits, then);
  second.continue_from(first.counted(100), 0);
  for (const std::uint64_t step : {0, 1, 30, 31, 200}) {
    EXPECT_EQ(second.on_alarm(1, step, false), whole.on_alarm(1, step + 21, false)) << step;
    EXPECT_EQ(second.beyond(1), whole.beyond(1)) << step;
    EXPECT_EQ(second.in_a_row(1), whole.in_a_row(1)) << step;
  }
  EXPECT_EQ(second.on_alarm(0, 0, false), Action::kSkip);  // of which nothing was counted
}

TEST(Policy, GoodStepsBetweenTwoMachinesEndARow) {
  PolicyMachine first(Policy::kSkip, {.in_a_row = 1});
  first.on_alarm(0, 7, false);
  PolicyMachine at_once(Policy::kSkip, {.in_a_row = 1}), later(Policy::kSkip, {.in_a_row = 1});
  at_once.continue_from(first.counted(100), 0);
  later.continue_from(first.counted(100), 1);
  EXPECT_EQ(at_once.on_alarm(0, 0, false), Action::kStop);
  EXPECT_EQ(later.on_alarm(0, 0, false), Action::kSkip);
}

TEST(Policy, CountsFromElsewhereAreBounded) {
  PolicyMachine machine(Policy::kSkip, {.in_a_row = 2, .total = 50, .share = 0.5, .window = 10});
  machine.continue_from({{.optimizer = 0, .in_a_row = 0, .total = 0, .stage = 77, .steps_ago = {4000000000u, 3, 9}}},
                        4000000000u);
  for (const std::uint64_t step : {0, 1, 2}) machine.on_alarm(0, step, false);
  EXPECT_EQ(machine.in_a_row(0), 3u);
}

TEST(Policy, AListOfPoliciesIsReadOrRefused) {
  EXPECT_EQ(parse_policies("rollback,stop"), (std::vector{Policy::kRollback, Policy::kStop}));
  EXPECT_EQ(parse_policies(""), std::vector<Policy>());
  for (const char* wrong : {"rollback,", ",stop", "stop stop", "x"}) EXPECT_EQ(parse_policies(wrong), std::nullopt);
}

TEST(Policy, TheTotalIsLimitedForAnyPolicy) {
  for (const Policy policy : {Policy::kSkip, Policy::kWarn, Policy::kRollback}) {
    PolicyMachine machine(policy, {.in_a_row = 10, .total = 3});
    for (const std::uint64_t step : {1, 30, 30, 500}) EXPECT_FALSE(ends(machine.on_alarm(0, step, false))) << step;
    EXPECT_EQ(machine.beyond(0), "");
    EXPECT_EQ(machine.on_alarm(0, 9000, false), Action::kStop);
    EXPECT_EQ(machine.beyond(0), "bad steps: 4, and --max-bad lets 3 pass");
    EXPECT_FALSE(ends(machine.on_alarm(1, 9000, false)));
  }
}

TEST(Policy, TheShareOfAWindowIsLimited) {
  PolicyMachine machine(Policy::kSkip, {.in_a_row = 10, .share = 0.05, .window = 40});
  for (const std::uint64_t step : {5, 20, 60, 90, 110, 140}) EXPECT_FALSE(ends(machine.on_alarm(0, step, false)));
  EXPECT_FALSE(ends(machine.on_alarm(0, 150, false)));
  EXPECT_EQ(machine.on_alarm(0, 160, false), Action::kStop);
  EXPECT_EQ(machine.beyond(0), "bad steps of the last 40: 3, and --max-bad-share lets a share of 0.05 pass");
  EXPECT_FALSE(ends(machine.on_alarm(0, 100, false)));  // resumed from a checkpoint
}

TEST(Policy, ASharesTextIsReadOrRefused) {
  Limits limits;
  EXPECT_TRUE(parse_share("0.05/200", &limits));
  EXPECT_EQ(limits.share, 0.05);
  EXPECT_EQ(limits.window, 200u);
  EXPECT_TRUE(parse_share("1", &limits));
  for (const char* wrong : {"", "0", "-0.1", "1.5", "nan", "0.1/", "0.1/0", "0.1/x", "0.1/5x", "x", "0.1 /5"})
    EXPECT_FALSE(parse_share(wrong, &limits)) << wrong;
  EXPECT_EQ(limits.share, 1);
}

TEST(Policy, TwoAlarmsOfOneStepAreOneSkip) {
  PolicyMachine machine(Policy::kSkip, {2});
  for (const std::uint64_t step : {0, 0, 1, 1}) EXPECT_EQ(machine.on_alarm(0, step, false), Action::kSkip) << step;
  EXPECT_EQ(machine.in_a_row(0), 2u);
  EXPECT_EQ(machine.on_alarm(0, 2, false), Action::kStop);
}

TEST(Policy, EachOptimizerHasItsOwnRow) {
  PolicyMachine machine(Policy::kSkip, {2});
  EXPECT_EQ(machine.on_alarm(0, 5, false), Action::kSkip);
  EXPECT_EQ(machine.on_alarm(1, 90, false), Action::kSkip);
  EXPECT_EQ(machine.on_alarm(0, 6, false), Action::kSkip);
  EXPECT_EQ(machine.on_alarm(1, 95, false), Action::kSkip);  // its own good steps between
  EXPECT_EQ(machine.on_alarm(0, 7, false), Action::kStop);   // are none of the other's
}

TEST(Policy, RemembersWhatWasAppliedAlthoughBad) {
  PolicyMachine machine(Policy::kWarn, {10});
  EXPECT_FALSE(machine.applied_although_bad(0, 0));
  machine.on_alarm(0, 4, false);
  EXPECT_TRUE(machine.applied_although_bad(0, 4));
  EXPECT_FALSE(machine.applied_although_bad(0, 5));
  EXPECT_FALSE(machine.applied_although_bad(1, 4));
  PolicyMachine skipping(Policy::kSkip, {10});
  skipping.on_alarm(0, 4, false);
  EXPECT_FALSE(skipping.applied_although_bad(0, 4));
}

TEST(SecondRuns, ThreeAndNoMore) {
  SecondRuns runs(Policy::kStop);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(runs.take(SinkKind::kLoss, false, false, false));
  EXPECT_FALSE(runs.take(SinkKind::kLoss, false, false, false));
  EXPECT_EQ(runs.left(), 0u);
}

TEST(SecondRuns, NoneUnderRaise) {
  SecondRuns runs(Policy::kRaise);
  EXPECT_FALSE(runs.take(SinkKind::kLoss, false, true, true));
  EXPECT_EQ(runs.left(), 3u);
}

TEST(SecondRuns, InContinuingProgramsEachKindIsExplainedOnce) {
  SecondRuns runs(Policy::kSkip);
  EXPECT_TRUE(runs.take(SinkKind::kLoss, false, false, false));
  EXPECT_FALSE(runs.take(SinkKind::kLoss, false, false, false));
  EXPECT_TRUE(runs.take(SinkKind::kLoss, true, false, false));  // harmless is another kind
  EXPECT_TRUE(runs.take(SinkKind::kGradient, false, false, false));
  EXPECT_FALSE(runs.take(SinkKind::kGradOutput, false, false, false));
  EXPECT_EQ(runs.left(), 0u);
}

TEST(SecondRuns, UnderStopOnlyHarmlessKindsAreExplainedOnce) {
  SecondRuns runs(Policy::kStop);
  EXPECT_TRUE(runs.take(SinkKind::kLoss, true, false, false));
  EXPECT_FALSE(runs.take(SinkKind::kLoss, true, false, false));
  EXPECT_TRUE(runs.take(SinkKind::kLoss, false, false, false));
  EXPECT_TRUE(runs.take(SinkKind::kLoss, false, false, false));
}

TEST(SecondRuns, AllowancesAndTracesAreOutsideTheBudget) {
  SecondRuns allowed(Policy::kSkip);
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(allowed.take(SinkKind::kLoss, false, true, false));
  EXPECT_EQ(allowed.left(), 0u);
  SecondRuns traced(Policy::kSkip);
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(traced.take(SinkKind::kLoss, false, false, true));
  EXPECT_EQ(traced.left(), 3u);
}

TEST(SecondRuns, InPlaceThereAreEightTogether) {
  SecondRuns runs(Policy::kSkip);
  EXPECT_TRUE(runs.take(SinkKind::kLoss, false, false, false));
  EXPECT_FALSE(runs.in_place_only());
  for (int i = 0; i < 7; ++i) {
    EXPECT_FALSE(runs.take(SinkKind::kLoss, false, false, false));
    EXPECT_TRUE(runs.take_in_place());
    EXPECT_TRUE(runs.in_place_only());
  }
  EXPECT_FALSE(runs.take_in_place());
  EXPECT_TRUE(runs.take(SinkKind::kGradient, false, false, false));  // of another kind
  EXPECT_FALSE(runs.in_place_only());
  EXPECT_FALSE(SecondRuns(Policy::kRaise).take_in_place());
}

TEST(SecondRuns, NoneInPlaceWhereOneFailed) {
  SecondRuns runs(Policy::kSkip);
  EXPECT_TRUE(runs.take(SinkKind::kLoss, false, false, false));
  EXPECT_TRUE(runs.take_in_place());
  runs.end_in_place();
  EXPECT_FALSE(runs.take_in_place());
  EXPECT_TRUE(runs.take(SinkKind::kParameter, false, false, false));
}

#ifdef FINITUDE_HAS_RAPIDCHECK

// Any run of good and bad steps of up to three optimizers: what the script sees is counted manually.
RC_GTEST_PROP(PolicyProperty, NeverMoreThanMaxSkipsInARowWithoutAStop, ()) {
  const Policy policy = *rc::gen::elementOf(std::vector<Policy>(std::begin(kPolicies), std::end(kPolicies)));
  const auto max_skips = *rc::gen::inRange<std::uint32_t>(0, 5);
  PolicyMachine machine(policy, {max_skips});
  std::uint64_t step[3] = {};
  std::uint32_t skipped[3] = {}, alarms[3] = {};
  const auto length = *rc::gen::inRange(0, 80);
  for (int i = 0; i < length; ++i) {
    const auto optimizer = *rc::gen::inRange<std::uint32_t>(0, 3);
    const bool bad = *rc::gen::weightedElement<bool>({{4, true}, {1, false}});
    if (!bad) {
      skipped[optimizer] = alarms[optimizer] = 0;
    } else {
      const bool harmless = *rc::gen::arbitrary<bool>();
      const Action action = machine.on_alarm(optimizer, step[optimizer], harmless);
      ++alarms[optimizer];
      RC_ASSERT(machine.in_a_row(optimizer) == alarms[optimizer]);
      skipped[optimizer] = vetoes(action) && !ends(action) ? skipped[optimizer] + 1 : 0;
      RC_ASSERT(skipped[optimizer] <= max_skips);
      RC_ASSERT(policy == Policy::kWarn || ends(action) || alarms[optimizer] <= max_skips);
      RC_ASSERT(policy != Policy::kWarn || action == Action::kApply);
      // A step that endangers the weights is applied only where the user asked for just that.
      RC_ASSERT(action != Action::kApply || harmless || policy == Policy::kWarn);
      RC_ASSERT(action != Action::kRaise || policy == Policy::kRaise);
    }
    ++step[optimizer];
  }
}

RC_GTEST_PROP(SecondRunsProperty, NeverMoreThanTheBudget, ()) {
  const Policy policy = *rc::gen::elementOf(std::vector<Policy>(std::begin(kPolicies), std::end(kPolicies)));
  const auto limit = *rc::gen::inRange<std::uint32_t>(0, 6);
  SecondRuns runs(policy, limit);
  std::uint32_t taken = 0;
  for (int i = 0; i < 40; ++i) {
    taken += runs.take(static_cast<SinkKind>(*rc::gen::inRange(0, 6)), *rc::gen::arbitrary<bool>(), false, false);
  }
  RC_ASSERT(taken <= limit);
  RC_ASSERT(runs.left() == limit - taken);
}

#endif

}  // namespace
}  // namespace finitude::decide
