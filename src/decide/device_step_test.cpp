#include "decide/device_step.h"

#include <gtest/gtest.h>

namespace finitude::decide {
namespace {

DeviceStep fused() {
  DeviceStep step;
  step.kernel_takes_flag = step.every_state_exists = true;
  return step;
}

TEST(DeviceStep, FusedWithStateIsSkippedOnTheDevice) { EXPECT_EQ(choose_way(fused()), Way::kFlag); }

TEST(DeviceStep, EverythingElseWaits) {
  const auto with = [](auto change) {
    DeviceStep step = fused();
    change(step);
    return choose_way(step);
  };
  EXPECT_EQ(with([](DeviceStep& s) { s.kernel_takes_flag = false; }), Way::kWait);
  EXPECT_EQ(with([](DeviceStep& s) { s.every_state_exists = false; }), Way::kWait);
  EXPECT_EQ(with([](DeviceStep& s) { s.devices = 2; }), Way::kWait);
  EXPECT_EQ(with([](DeviceStep& s) { s.has_cpu_gradients = true; }), Way::kWait);
  EXPECT_EQ(with([](DeviceStep& s) { s.wants_answer = true; }), Way::kWait);
  EXPECT_EQ(with([](DeviceStep& s) { s.has_foreign_flag = true; }), Way::kWait);
  EXPECT_EQ(with([](DeviceStep& s) { s.has_foreign_flag = s.foreign_flag_fits = true; }), Way::kFlag);
}

TEST(DeviceStep, WarnNeverWaits) {
  DeviceStep step = fused();
  step.vetoes = false;
  EXPECT_EQ(choose_way(step), Way::kWatch);
  step.kernel_takes_flag = false;
  EXPECT_EQ(choose_way(step), Way::kWatch);
}

TEST(DeviceStep, ACaptureIsLeftAlone) {
  DeviceStep step = fused();
  step.capturing = step.wants_answer = true;
  EXPECT_EQ(choose_way(step), Way::kOut);
  step = fused();
  step.can_scan = false;
  EXPECT_EQ(choose_way(step), Way::kOut);
}

TEST(DeviceStep, OnlyPoliciesSkippingHarmlessStepsCountTheLoss) {
  for (const Policy policy : {Policy::kStop, Policy::kSkip, Policy::kWarn, Policy::kRaise, Policy::kRollback}) {
    PolicyMachine machine(policy, {10});
    EXPECT_EQ(counts_loss(policy), vetoes(machine.on_alarm(0, 0, true))) << name(policy);
  }
}

TEST(LateVerdict, GradientAlarmsAndItsStepWasSkipped) {
  LateFacts facts;
  facts.bad_tensors = 2;
  LateVerdict v = judge_late(facts);
  EXPECT_EQ(v.kind, LateVerdict::Kind::kAlarm);
  EXPECT_EQ(v.sink, SinkKind::kGradient);
  EXPECT_TRUE(v.left_out);
  EXPECT_FALSE(v.harmless);
  facts.loss_bad = true;
  v = judge_late(facts);
  EXPECT_EQ(v.sink, SinkKind::kLoss);
  EXPECT_FALSE(v.harmless);
  facts.way = Way::kWatch;
  EXPECT_FALSE(judge_late(facts).left_out) << "warn applies it";
}

TEST(LateVerdict, BadLossAloneIsSkippedOnlyWhereCounted) {
  LateFacts facts;
  facts.loss_bad = true;
  LateVerdict v = judge_late(facts);
  EXPECT_EQ(v.kind, LateVerdict::Kind::kAlarm);
  EXPECT_TRUE(v.harmless);
  EXPECT_FALSE(v.left_out);
  facts.loss_counted = true;
  EXPECT_TRUE(judge_late(facts).left_out);
}

TEST(LateVerdict, ScalerSkipIsNormalUnlessLossIsBad) {
  LateFacts facts;
  facts.foreign_flag = true;
  facts.bad_tensors = 5;
  LateVerdict v = judge_late(facts);
  EXPECT_EQ(v.kind, LateVerdict::Kind::kScalerSkip);
  EXPECT_TRUE(v.left_out);
  facts.loss_bad = true;
  v = judge_late(facts);
  EXPECT_EQ(v.kind, LateVerdict::Kind::kAlarm);
  EXPECT_TRUE(v.left_out);
}

TEST(LateVerdict, ScalerFlagSkipsAStepOnlyWatched) {
  LateFacts facts;
  facts.way = Way::kWatch;
  facts.bad_tensors = 1;
  facts.foreign_flag = true;
  EXPECT_EQ(judge_late(facts).kind, LateVerdict::Kind::kScalerSkip);
  facts.loss_bad = true;
  EXPECT_EQ(judge_late(facts).kind, LateVerdict::Kind::kAlarm);
  EXPECT_TRUE(judge_late(facts).left_out);
}

TEST(LateVerdict, HealthyAndOverflowedNorm) {
  LateFacts facts;
  EXPECT_EQ(judge_late(facts).kind, LateVerdict::Kind::kHealthy);
  EXPECT_FALSE(judge_late(facts).left_out);
  facts.norm_not_finite = true;
  EXPECT_TRUE(judge_late(facts).norm_overflow);
  facts.bad_tensors = 1;
  EXPECT_FALSE(judge_late(facts).norm_overflow);
}

}  // namespace
}  // namespace finitude::decide
