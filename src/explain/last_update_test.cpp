// When the learning rate is the first link of a chain that ends in an overflow.
#include "explain/last_update.h"

#include <gtest/gtest.h>

#include "explain/trace_builder.h"

namespace finitude::explain {
namespace {

using replay::StepTrial;

StepTrial trial_ran(std::vector<std::string> bad = {}) {
  StepTrial trial;
  trial.ran = true;
  trial.bad = std::move(bad);
  return trial;
}

Finding clamped(const std::string& cause) {
  Finding finding;
  finding.cause_class = cause;
  finding.confidence = "proven";
  finding.text = "exp of 145 is beyond float32";
  finding.experiments = {{"exp in float64", "finite", true}};
  finding.fix_verified = true;
  finding.fix_file = "model.py";
  finding.fix_line = 12;
  return finding;
}

TEST(LastUpdate, DisproportionateUpdateIsTheFirstLink) {
  record::Trace trace;
  StepHistory history;
  history.loss = {3};
  history.learning_rate = {10};
  Finding finding = clamped("exp-overflow");
  judge_last_update(finding, history, trace, {45, trial_ran(), trial_ran()});
  EXPECT_EQ(finding.cause_class, "learning-rate");
  EXPECT_EQ(finding.confidence, "proven");
  EXPECT_FALSE(finding.fix_verified || finding.fix_line != 0 || finding.experiments[0].predicted);
  EXPECT_EQ(finding.text,
            "the updates are too large: the last one was 45 times as large as the weights before it at a learning rate "
            "of 10. "
            "What follows from that: exp of 145 is beyond float32");
}

TEST(LastUpdate, AUsualOneIsNot) {
  record::Trace trace;
  StepHistory history;
  history.loss = {3, 2, 1};
  history.param_absmax = {1, 1.2};
  for (const auto& trials : {UpdateTrials{0.01, trial_ran(), trial_ran()},
                             UpdateTrials{45, trial_ran({"loss"}), trial_ran()}, UpdateTrials{45, {}, {}}}) {
    Finding finding = clamped("exp-overflow");
    judge_last_update(finding, history, trace, trials);
    EXPECT_EQ(finding.cause_class, "exp-overflow");
    EXPECT_TRUE(finding.fix_verified);
  }
  Finding data = clamped("bad-data");
  judge_last_update(data, history, trace, {45, trial_ran(), trial_ran()});
  EXPECT_EQ(data.cause_class, "bad-data");
}

TEST(LastUpdate, WeightsThatGrewTenfoldInFewSteps) {
  record::Trace trace;
  StepHistory history;
  history.param_absmax = {0.2, 9};
  for (const std::size_t steps : {2, 20}) {
    history.loss.assign(steps, 1);
    Finding finding = clamped("log-of-zero");
    judge_last_update(finding, history, trace, {0.9, trial_ran(), trial_ran({"loss"})});
    EXPECT_EQ(finding.cause_class, steps == 2 ? "learning-rate" : "log-of-zero") << steps;
  }
}

TEST(LastUpdate, ThousandfoldGrownWeightsWithdrawTheOperationFix) {
  record::Trace trace;
  StepHistory history;
  history.loss.assign(30, 1);
  for (const double now : {4e18, 20.0}) {
    history.param_absmax = {0.25, now};
    Finding finding = clamped("exp-overflow");
    finding.edits.resize(2);
    judge_grown_weights(finding, history, trace, record::kNone);
    EXPECT_EQ(finding.cause_class, now > 1e3 ? "learning-rate" : "exp-overflow");
    EXPECT_EQ(finding.edits.size(), now > 1e3 ? 0u : 2u);
  }
}

TEST(LastUpdate, GrownWeightsAreNotBlamedForOtherValues) {
  for (const bool is_made_of_weights : {false, true}) {
    TraceBuilder b;
    b.history.loss.assign(30, 1);
    b.history.param_absmax = {0.25, 4e18};
    const auto weight = b.tensor({4e18}, sense::DType::kFloat32, record::Origin::kParameter, "weight");
    const auto batch = b.tensor({1}, sense::DType::kFloat32, record::Origin::kBatch);
    const auto high = b.tensor({kInf}), low = b.tensor({kInf}), width = b.tensor({kNaN});
    b.op("aten::full", {}, {low});
    b.op("aten::mul", {{"self", batch}, {"other", is_made_of_weights ? weight : b.number(kInf)}}, {high});
    const record::OpId birth = b.op("aten::sub", {{"self", high}, {"other", low}}, {width});
    Finding finding = clamped("infinity-minus-infinity");
    judge_grown_weights(finding, b.history, b.trace, birth);
    EXPECT_EQ(finding.cause_class, is_made_of_weights ? "learning-rate" : "infinity-minus-infinity");
  }
}

TEST(LastUpdate, GrownWeightsAreNotBlamedForALossThatGrewBeforeThem) {
  StepHistory history;
  history.loss = {1.8, 24, 270, 2900, 3.3e4, 3.9e5, 4.2e6};
  history.grad_absmax = {2.6, 30, 350, 3200, 3.5e4, 4.4e5, 4.9e6};
  history.learning_rate.assign(7, 1e-5);
  history.param_absmax = {0.5, 800};
  EXPECT_FALSE(grew_without_updates(history));  // 380e-5 of 0.5 in three steps: such updates may do it
  history.learning_rate.assign(7, 1e-8);
  EXPECT_TRUE(grew_without_updates(history));
  Finding finding = clamped("overflow");
  judge_grown_weights(finding, history, {}, 0);
  EXPECT_EQ(finding.cause_class, "overflow");
  history.lr_now = 1e-5;  // of another group
  EXPECT_FALSE(grew_without_updates(history));
  history.lr_now = 0, history.loss[2] = 20, history.loss[4] = 2000;  // it fell
  EXPECT_FALSE(grew_without_updates(history));
}

TEST(LastUpdate, LossThatIsInfIsNotUsual) {
  StepHistory diverges;  // by its rate, and each step was applied
  diverges.loss = {1.7, 4.9e23, kInf, kInf};
  diverges.grad_absmax = {0.8, 4.8e11, 3.9e23, 3.2e35};
  diverges.learning_rate = {1e12, 1e12, 1e12, 1e12};
  EXPECT_EQ(outlier_before(diverges), "");
  StepHistory harmless;  // the loss alone is Inf, again and again
  harmless.loss = {2, 2, kInf, kInf, kInf};
  harmless.grad_absmax = harmless.learning_rate = {1, 1, 1, 1, 1};
  EXPECT_EQ(outlier_before(harmless), "");
  StepHistory skipped;  // steps of a loss scale that was too large; then one batch
  skipped.loss = {2, 2, 2, 2, 2, 5e4};
  skipped.grad_absmax = {kInf, kInf, 1, 1, 1, 4e5};
  skipped.learning_rate = {1, 1, 1, 1, 1, 1};
  EXPECT_NE(outlier_before(skipped), "");
}

TEST(LastUpdate, ClosureMovedWeightsFarInFirstStep) {
  for (const auto& [now, is_updated] : {std::pair(5000.0, true), {0.3, true}, {5000.0, false}}) {
    TraceBuilder b;
    b.history.lr_now = 1000;
    const auto junk = b.tensor({3e38}, sense::DType::kFloat32, record::Origin::kParameter, "weight");
    b.op("aten::detach", {{"self", junk}}, {});
    b.op("aten::uniform_", {{"self", junk}}, {TraceBuilder::holding(junk, {0.2})});
    b.op("aten::mul", {{"self", TraceBuilder::holding(junk, {0.2})}}, {});
    b.phase = record::Phase::kBackward;
    b.op("aten::mul", {{"self", TraceBuilder::holding(junk, {0.2})}}, {});
    b.phase = record::Phase::kForward;
    if (is_updated) b.op("aten::add_", {{"self", junk}}, {TraceBuilder::holding(junk, {now})});
    b.op("aten::mul", {{"self", TraceBuilder::holding(junk, {now})}}, {});
    Finding finding = clamped("exp-overflow");
    judge_grown_weights(finding, b.history, b.trace, record::kNone);
    const bool grew = now > 1 && is_updated;
    EXPECT_EQ(finding.cause_class, grew ? "learning-rate" : "exp-overflow");
    const bool is_said =
        finding.text.find("grew from 0.2 to 5000 within this step at a learning rate of 1000") != finding.text.npos;
    EXPECT_EQ(is_said, grew) << finding.text;
  }
}

TEST(LearningRate, ExponentialAfterFewLargeWeightMoves) {
  for (const double now : {60.0, 0.5}) {
    TraceBuilder b;
    b.history.loss = {3};
    b.history.param_absmax = {0.2, now};
    b.history.learning_rate = {10};
    b.born(b.op("aten::exp", {{"self", b.tensor({1000})}}, {b.tensor({kInf})}));
    EXPECT_EQ(b.explained().cause_class, now > 1 ? "learning-rate" : "exp-overflow");
  }
}

}  // namespace
}  // namespace finitude::explain
