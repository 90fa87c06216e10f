#include "decide/window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#if __has_include(<rapidcheck/gtest.h>)
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>
#define FINITUDE_HAS_RAPIDCHECK
#endif

namespace finitude::decide {
namespace {

using Kind = Verdict::Kind;

// Facts of a window with one loss and three parameters, all of them fine.
struct Window {
  std::vector<LossFact> losses = {LossFact{}};
  WindowFacts facts = [] {
    WindowFacts f;
    f.clean_gradients = f.parameters = 3;
    return f;
  }();

  Window& bad_gradients(std::uint32_t n) {
    facts.bad_gradients = n;
    facts.clean_gradients = facts.parameters - n;
    return *this;
  }
  LossFact& bad_loss(std::size_t i = 0) {
    if (losses.size() <= i) losses.resize(i + 1);
    losses[i].bad = true;
    losses[i].micro_batch = static_cast<std::uint32_t>(i);
    return losses[i];
  }
  Verdict judged() {
    facts.losses = losses;
    return judge(facts);
  }
};

void expect_alarm(const Verdict& v, SinkKind sink, bool harmless) {
  EXPECT_EQ(v.kind, Kind::kAlarm);
  EXPECT_EQ(v.sink, sink);
  EXPECT_EQ(v.harmless, harmless);
}

TEST(Window, NothingBadIsNothing) {
  EXPECT_EQ(Window().judged().kind, Kind::kNothing);
  Window empty;
  empty.losses.clear();
  EXPECT_EQ(empty.judged().kind, Kind::kNothing);
  Window unused;  // a parameter that got no gradient was not put right by anyone
  unused.facts.clean_gradients = 2;
  EXPECT_EQ(unused.judged().kind, Kind::kNothing);
}

TEST(Window, ABadGradientAlarms) {
  const Verdict v = Window().bad_gradients(1).judged();
  expect_alarm(v, SinkKind::kGradient, false);
  EXPECT_EQ(v.loss, kNoLoss);
  EXPECT_EQ(v.micro_batch, 0u);
}

TEST(Window, ClampingDoesNotHideIt) {
  Window w;
  w.facts.clamped = 1;
  expect_alarm(w.judged(), SinkKind::kGradient, false);
}

TEST(Window, BadLossWithBadGradientsAlarmsAtLoss) {
  Window w;
  w.bad_gradients(3).bad_loss(2).gradients_were_bad = true;
  const Verdict v = w.judged();
  expect_alarm(v, SinkKind::kLoss, false);
  EXPECT_EQ(v.loss, 2u);
  EXPECT_EQ(v.micro_batch, 2u);
}

TEST(Window, ABadLossAloneIsHarmless) {
  Window w;
  w.bad_loss();
  expect_alarm(w.judged(), SinkKind::kLoss, true);
}

TEST(Window, TheFirstBadLossIsNamed) {
  Window w;
  w.bad_loss(1);
  w.bad_loss(3);
  EXPECT_EQ(w.judged().loss, 1u);
}

TEST(Window, ALossOfAnotherOptimizerIsNotOurs) {
  Window w;
  w.bad_loss().owned = false;
  EXPECT_EQ(w.judged().kind, Kind::kNothing);
  w.bad_gradients(1);
  expect_alarm(w.judged(), SinkKind::kGradient, false);
}

TEST(Window, ABadGradArgumentIsNamed) {
  Window w;
  w.bad_gradients(1).losses[0].grad_bad = true;
  expect_alarm(w.judged(), SinkKind::kGradOutput, false);
  w.bad_loss();
  expect_alarm(w.judged(), SinkKind::kLoss, false);  // the loss itself is the better name
  EXPECT_EQ(report_word(SinkKind::kGradOutput), "gradient");
}

TEST(Window, GradArgumentReachingNoGradientIsNothing) {
  Window w;
  w.losses[0].grad_bad = true;
  EXPECT_EQ(w.judged().kind, Kind::kNothing);
}

TEST(Window, ScriptCorrectionsAreCountedOncePerWindow) {
  Window zeroed;  // zeroed, replaced or taken away at `step`
  zeroed.facts.laundered = 3;
  EXPECT_EQ(zeroed.judged().kind, Kind::kHandledByScript);
  EXPECT_EQ(zeroed.judged().times, 1u);
  zeroed.bad_loss().gradients_were_bad = true;
  EXPECT_EQ(zeroed.judged().kind, Kind::kHandledByScript);
  EXPECT_EQ(zeroed.judged().times, 1u);
}

TEST(Window, DroppedWindowsAreCountedOneByOne) {
  Window w;
  w.bad_loss(0).gradients_were_bad = true;
  w.bad_loss(1).gradients_were_bad = true;
  w.facts.dropped = w.facts.laundered = 2;
  EXPECT_EQ(w.judged().kind, Kind::kHandledByScript);
  EXPECT_EQ(w.judged().times, 2u);
}

TEST(Window, PuttingOneOfTwoRightIsAnAlarm) {
  Window w;
  w.bad_gradients(1).facts.laundered = 1;
  w.bad_loss().gradients_were_bad = true;
  expect_alarm(w.judged(), SinkKind::kLoss, false);
}

TEST(Window, OneHandledLossDoesNotExcuseAnother) {
  Window w;
  w.bad_loss(0).gradients_were_bad = true;
  w.bad_loss(1);
  w.facts.laundered = 1;
  expect_alarm(w.judged(), SinkKind::kLoss, true);
}

TEST(Window, OverflowedNormOfFiniteGradientsIsAdvisory) {
  Window w;
  w.facts.norm_overflow = true;
  EXPECT_EQ(w.judged().kind, Kind::kNothing);
  EXPECT_TRUE(w.judged().norm_overflow_advisory);
  w.bad_loss();
  expect_alarm(w.judged(), SinkKind::kLoss, true);
  EXPECT_TRUE(w.judged().norm_overflow_advisory);
  w.bad_gradients(1);  // then it overflowed for a reason that is reported anyway
  EXPECT_FALSE(w.judged().norm_overflow_advisory);
}

TEST(Window, BufferCountsOnlyWhenNothingElseIsBad) {
  Window w;
  w.facts.buffers_turned_nan = true;
  expect_alarm(w.judged(), SinkKind::kBuffer, false);
  w.facts.laundered = 1;
  expect_alarm(w.judged(), SinkKind::kBuffer, false);
  w.bad_loss();
  expect_alarm(w.judged(), SinkKind::kLoss, true);
}

#ifdef FINITUDE_HAS_RAPIDCHECK

std::uint32_t few() { return *rc::gen::weightedElement<std::uint32_t>({{3, 0}, {1, 1}, {1, 2}, {1, 4000000000u}}); }

Window any_window() {
  Window w;
  w.losses.resize(*rc::gen::inRange<std::size_t>(0, 5));
  std::uint32_t index = 0;
  for (LossFact& loss : w.losses) {
    loss.bad = *rc::gen::arbitrary<bool>();
    loss.owned = !loss.bad || *rc::gen::arbitrary<bool>();
    loss.grad_bad = *rc::gen::arbitrary<bool>();
    loss.gradients_were_bad = *rc::gen::arbitrary<bool>();
    loss.micro_batch = index++;
  }
  w.facts.bad_gradients = few();
  w.facts.clean_gradients = few();
  w.facts.parameters = few();
  w.facts.laundered = few();
  w.facts.clamped = few();
  w.facts.dropped = few();
  w.facts.norm_overflow = *rc::gen::arbitrary<bool>();
  w.facts.buffers_turned_nan = *rc::gen::arbitrary<bool>();
  return w;
}

bool bad_loss_of_ours(const Window& w) {
  for (const LossFact& loss : w.losses) {
    if (loss.bad && loss.owned) return true;
  }
  return false;
}

RC_GTEST_PROP(WindowProperty, AWindowWithNothingBadNeverAlarms, ()) {
  Window w = any_window();
  for (LossFact& loss : w.losses) loss.bad = false;
  w.facts.bad_gradients = w.facts.clamped = 0;
  w.facts.buffers_turned_nan = false;
  RC_ASSERT(w.judged().kind != Kind::kAlarm);
}

RC_GTEST_PROP(WindowProperty, ABadGradientAlwaysAlarmsAndIsNeverHarmless, ()) {
  Window w = any_window();
  if (w.facts.clamped == 0) w.facts.bad_gradients = std::max(w.facts.bad_gradients, 1u);
  const Verdict v = w.judged();
  RC_ASSERT(v.kind == Kind::kAlarm);
  RC_ASSERT(!v.harmless);
  RC_ASSERT(v.sink != SinkKind::kBuffer);
}

RC_GTEST_PROP(WindowProperty, HarmlessMeansThatOnlyALossIsBad, ()) {
  Window w = any_window();
  const Verdict v = w.judged();
  if (!v.harmless) return;
  RC_ASSERT(v.kind == Kind::kAlarm);
  RC_ASSERT(v.sink == SinkKind::kLoss);
  RC_ASSERT(w.facts.bad_gradients == 0u && w.facts.clamped == 0u);
}

RC_GTEST_PROP(WindowProperty, AnAlarmAtALossNamesABadOneOfOurs, ()) {
  Window w = any_window();
  const Verdict v = w.judged();
  RC_ASSERT((v.loss != kNoLoss) == (v.kind == Kind::kAlarm && v.sink == SinkKind::kLoss));
  if (v.loss == kNoLoss) return;
  RC_ASSERT(w.losses[v.loss].bad && w.losses[v.loss].owned);
  RC_ASSERT(v.micro_batch == w.losses[v.loss].micro_batch);
}

RC_GTEST_PROP(WindowProperty, HandledMeansAtLeastOnceAndThatSomethingWasBad, ()) {
  Window w = any_window();
  const Verdict v = w.judged();
  RC_ASSERT((v.kind == Kind::kHandledByScript) == (v.times > 0));
  if (v.times == 0) return;
  RC_ASSERT(w.facts.laundered != 0u || w.facts.dropped != 0u || bad_loss_of_ours(w));
}

RC_GTEST_PROP(WindowProperty, OtherPeoplesLossesChangeNothing, ()) {
  Window w = any_window();
  const Verdict with = w.judged();
  for (LossFact& loss : w.losses) loss.bad &= loss.owned;
  const Verdict without = w.judged();
  RC_ASSERT(with.kind == without.kind && with.sink == without.sink && with.loss == without.loss);
  RC_ASSERT(with.harmless == without.harmless && with.times == without.times);
}

#endif

}  // namespace
}  // namespace finitude::decide
