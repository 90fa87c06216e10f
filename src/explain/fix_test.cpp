// Edits that rules name, and what trying them on the whole step makes of a finding.
#include "explain/fix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "explain/table_step.h"
#include "explain/trace_builder.h"

namespace finitude::explain {
namespace {

using replay::Edit;
using replay::StepTrial;

// Gradients that are averaged over ranks are on the tape as they were recorded, bad: no change of one rank reaches
// them.
TEST(Fix, ValuesOfOtherRanksNeitherRefuteNorVerify) {
  StepTrial trial = that_ran();
  trial.given = {"gradient of weight", "gradient of bias"};
  EXPECT_FALSE(trial.verified());
  Finding finding = with_edits(1);
  TableStep lab;
  lab.answers = {trial};
  try_on_step(finding, lab, {});
  EXPECT_FALSE(finding.fix_verified);
  EXPECT_EQ(
      finding.fix_outcome,
      "cannot be determined from one rank's tape: this rank's own values are finite, 2 gradients come from all ranks "
      "as recorded");
}

TEST(Fix, WhatAnotherRankGaveIsNotExperimentedWith) {
  Finding finding = with_edits(1);
  finding.cause_class = "other-rank";
  TableStep lab;
  lab.answers = {that_ran()};
  try_on_step(finding, lab, {});
  EXPECT_TRUE(finding.experiments.empty() && finding.fix_outcome.empty() && !finding.fix_verified);
}

TEST(Fix, TextNamingAnotherWaySaysWhatWasTried) {
  Finding finding = with_edits(2);
  finding.fix_text = "another function";
  finding.fix_is_no_edit = true;
  TableStep step;
  step.answers = {that_ran()};
  Finding advised = finding;
  advised.edits[0].advice = "write this";
  advised.edits[0].file = "model.py";
  advised.edits[0].line = 3;
  try_on_step(finding, step, {});
  EXPECT_EQ(finding.fix_text, "another function (not tried here); tried: edit 0");
  TableStep again;
  again.answers = {that_ran()};
  try_on_step(advised, again, {});
  EXPECT_EQ(advised.fix_text, "write this");
  EXPECT_EQ(advised.fix_line, 3);
}

TEST(Fix, TheFirstVerifiedEditIsTheFix) {
  Finding finding = with_edits(3);
  TableStep step;
  step.answers = {that_ran({"loss"}), that_ran(), that_ran()};
  try_on_step(finding, step, {});
  EXPECT_TRUE(finding.fix_verified);
  EXPECT_EQ(finding.fix_tried, "edit 1");
  EXPECT_NE(finding.fix_outcome.find("7 values"), std::string::npos) << finding.fix_outcome;
  ASSERT_TRUE(finding.fix_edit);
  EXPECT_EQ(finding.fix_edit->text, "edit 1");
  ASSERT_GE(finding.experiments.size(), 3u);
  EXPECT_EQ(finding.experiments[0].outcome, "not finite: loss");
  EXPECT_FALSE(finding.experiments[0].predicted);                                    // says nothing against the cause
  EXPECT_TRUE(finding.experiments[2].predicted && finding.experiments[2].confirms);  // again as it was
}

TEST(Fix, HalfPrecisionIsRefutedWhereFloat32FailsToo) {
  const auto refuted = [](const char* cause, StepTrial in_float32) {
    Finding finding = with_edits(1);
    finding.cause_class = cause;
    finding.edits[0].kind = Edit::Kind::kCompute;
    finding.edits[0].dtype = sense::DType::kFloat32;
    TableStep step;
    step.answers = {std::move(in_float32)};
    return try_on_step(finding, step, {});
  };
  EXPECT_TRUE(refuted("half-precision-underflow", that_ran({"loss"})));
  EXPECT_FALSE(refuted("half-precision-underflow", that_ran()));
  EXPECT_FALSE(refuted("division-by-zero", that_ran({"loss"})));
  EXPECT_FALSE(refuted("half-precision-underflow", {}));  // not tried
}

TEST(Fix, LossesOfOneClosureAreOne) {
  Finding finding = with_edits(1);
  TableStep lab;
  lab.answers = {that_ran({"loss", "loss"})};
  try_on_step(finding, lab, TimeBudget{});
  EXPECT_EQ(finding.fix_outcome, "not finite: loss");
}

TEST(Fix, FiniteIsNotEnough) {
  Finding finding = with_edits(1);
  TableStep step;
  step.answers = {that_ran({}, "1 became 2 in aten::mul")};
  try_on_step(finding, step, {});
  EXPECT_FALSE(finding.fix_verified);
  EXPECT_FALSE(finding.fix_edit);
  EXPECT_NE(finding.fix_outcome.find("1 became 2"), std::string::npos);
}

TEST(Fix, NothingIsTriedWhenTheReplayDiffers) {
  Finding finding = with_edits(1);
  TableStep step;
  step.why_not = "other bits";
  step.answers = {that_ran()};
  try_on_step(finding, step, {});
  EXPECT_FALSE(finding.fix_verified);
  EXPECT_TRUE(step.asked.empty() && finding.experiments.empty() && finding.fix_tried.empty());
  EXPECT_NE(finding.fix_outcome.find("other bits"), std::string::npos);
}

TEST(Fix, TheBudgetIsKept) {
  Finding finding = with_edits(2);
  TableStep step;
  step.seconds = 20;  // two replays do not fit into a minute together with comparing
  step.answers = {that_ran(), that_ran()};
  try_on_step(finding, step, {});
  EXPECT_TRUE(step.asked.empty());
  EXPECT_TRUE(finding.out_of_time && !finding.fix_verified);
  EXPECT_EQ(finding.budget_seconds, 60);
}

// What can change the class is made on a busy machine as well: there is no time for anything here.
TEST(Fix, TheClassDoesNotDependOnTime) {
  for (const double seconds : {0.001, 20.0, 1e6}) {
    Finding finding = with_edits(2);
    finding.cause_class = "log-of-zero";
    finding.confidence = "proven";
    TableStep step;
    step.seconds = seconds;
    step.answers = {that_ran(), that_ran()};
    step.fill = {that_ran(), that_ran({"loss"}), 0, "aten::empty", 12};
    TimeBudget budget;
    budget.least = budget.most = 1e-9;
    try_on_step(finding, step, budget);
    EXPECT_EQ(finding.cause_class, "uninitialised-memory") << seconds;
    EXPECT_TRUE(step.asked.empty() && finding.out_of_time && !finding.fix_verified) << seconds;
  }
}

TEST(Fix, GuiltySamplesAreReported) {
  Finding finding = with_edits(0);
  TableStep step;
  step.rows.ran = step.rows.of_batch = step.rows.of_samples = true;
  step.rows.rows = 32;
  step.rows.filler = 5;
  step.rows.guilty = {3, 9};
  try_on_step(finding, step, {});
  const auto reported = [&](const Experiment& e) {
    return e.name == "whole step, samples 3, 9 of 32 replaced by a copy of sample 5";
  };
  const auto found = std::find_if(finding.experiments.begin(), finding.experiments.end(), reported);
  ASSERT_NE(found, finding.experiments.end());
  EXPECT_EQ(found->outcome, "loss and gradients finite; each of them alone makes the step fail");
  EXPECT_EQ(finding.guilty, (std::vector<std::int64_t>{3, 9}));
  EXPECT_EQ(finding.batch_rows, 32);
  EXPECT_EQ(found->rows, finding.guilty);
  EXPECT_EQ(found->of_rows, 32);
}

TEST(Fix, SeveralRowsPerSampleAreNoSamples) {
  Finding finding = with_edits(0);
  finding.loaded = {4};
  TableStep step;
  step.rows.ran = step.rows.of_batch = step.rows.of_samples = true;
  step.rows.rows = 24;
  step.rows.filler = 5;
  step.rows.guilty = {7};
  try_on_step(finding, step, {});
  const auto reported = [&](const Experiment& e) {
    return e.name == "whole step, row 7 of 24 replaced by a copy of row 5";
  };
  const auto found = std::find_if(finding.experiments.begin(), finding.experiments.end(), reported);
  ASSERT_NE(found, finding.experiments.end());
  EXPECT_EQ(found->of_rows, 0);
}

TEST(Fix, BirthOnlyJudgementIsReported) {
  Finding finding = with_edits(0);
  TableStep step;
  step.rows.ran = step.rows.up_to_birth = step.rows.of_samples = true;
  step.rows.rows = 4;
  step.rows.guilty = {1};
  try_on_step(finding, step, {});
  const auto reported = [&](const Experiment& e) {
    return e.name == "step up to the birth, sample 1 of 4 replaced by a copy of sample 0";
  };
  const auto found = std::find_if(finding.experiments.begin(), finding.experiments.end(), reported);
  ASSERT_NE(found, finding.experiments.end());
  EXPECT_EQ(found->outcome, "what is born there is finite");
}

TEST(Fix, RowsOfPossibleNonBatchAreNoSamples) {
  Finding finding = with_edits(0);
  TableStep step;
  step.rows.ran = true;
  step.rows.rows = 4;
  step.rows.guilty = {3};
  step.rows.elements = {{"", 0, {6}}, {"", 0, {7}}, {"", 1, {0}}, {"mask", 2, {2}}};
  try_on_step(finding, step, {});
  const auto named = [&](const std::string& name) {
    return std::ranges::find_if(finding.experiments, [&](const Experiment& e) { return e.name == name; });
  };
  const auto found = named("whole step, row 3 of 4 of an input replaced by a copy of row 0");
  ASSERT_NE(found, finding.experiments.end());
  EXPECT_TRUE(found->rows.empty());
  EXPECT_FALSE(finding.of_batch);
  EXPECT_NE(named("whole step, of row 3 only elements [6], [7] of an input, [0] of another and mask[2] replaced by "
                  "those of row 0"),
            finding.experiments.end());
}

TEST(Fix, UnknownOrJointlyGuiltySamplesAreNotNamed) {
  for (const int kind : {0, 1, 2}) {
    Finding finding = with_edits(0);
    TableStep step;
    step.rows.ran = true;
    step.rows.rows = 2;
    step.rows.guilty = {0};
    if (kind == 0) step.rows.more = true;
    if (kind == 1) step.rows.together = true;
    if (kind == 2) step.rows.guilty = {0, 1};
    try_on_step(finding, step, {});
    EXPECT_TRUE(finding.guilty.empty()) << kind;
  }
}

TEST(Fix, EarlierWeightsAreReportedAndJudgeNothing) {
  Finding finding = with_edits(0);
  TableStep step;
  step.earlier = that_ran({"loss"});
  try_on_step(finding, step, {});
  EXPECT_EQ(step.shares, (std::vector<double>{0, 0.1}));
  ASSERT_GE(finding.experiments.size(), 2u);
  const Experiment& last = finding.experiments.back();
  EXPECT_EQ(last.name, "whole step, the last update 10 times smaller");
  EXPECT_EQ(last.outcome, "not finite: loss");
  EXPECT_FALSE(last.predicted);
}

TEST(Fix, ReasonForUnknownEarlierWeightsIsReported) {
  for (const std::string cause : {"log-of-zero", "overflow"}) {
    Finding finding = with_edits(0);
    finding.cause_class = cause;
    TableStep step;
    step.earlier.why_not = "nobody knows";
    try_on_step(finding, step, {});
    const auto reported = std::count_if(finding.experiments.begin(), finding.experiments.end(),
                                        [](const Experiment& e) { return e.outcome == "not tried: nobody knows"; });
    EXPECT_EQ(reported, cause == "overflow" ? 1 : 0) << cause;
    EXPECT_EQ(step.shares.size(), 1u);
  }
}

TEST(Fix, MemoryThatNobodyWroteComesFirst) {
  Finding finding = with_edits(1);
  TableStep step;
  step.fill = {that_ran(), that_ran({"loss"}), 0, "aten::empty", 4};
  step.answers = {that_ran()};
  try_on_step(finding, step, {});
  EXPECT_EQ(finding.cause_class, "uninitialised-memory");
  EXPECT_TRUE(finding.fix_tried.empty());  // the edits were those of another cause
  for (const Edit& edit : step.asked) EXPECT_EQ(edit.kind, Edit::Kind::kCompute);
}

// Two expressions of one line are two places: what is changed in one of them is not changed in the other.
TEST(Fix, ExpressionsOfOneLineAreFixedSeparately) {
  TraceBuilder b;
  const auto call = b.op("aten::log", {{"self", b.tensor({1, 0})}}, {b.tensor({0, -kInf})});
  const auto other = b.op("aten::log", {{"self", b.tensor({1, 1e-20})}}, {b.tensor({0, -46})});
  const auto again = b.op("aten::log", {{"self", b.tensor({1, 0.5})}}, {b.tensor({0, -0.7})});
  b.trace.stacks[b.trace.ops[call].stack].frames.front().site = 10;
  b.trace.stacks[b.trace.ops[other].stack].frames.front() = b.trace.stacks[b.trace.ops[call].stack].frames.front();
  b.trace.stacks[b.trace.ops[other].stack].frames.front().site = 14;
  b.trace.ops[again].stack = b.trace.ops[call].stack;
  b.born(call);
  const Finding finding = b.explained();
  ASSERT_FALSE(finding.edits.empty());
  EXPECT_EQ(finding.edits.front().ops, (std::vector<record::OpId>{call, again}));
}

// A loop comes to the same expression again and again: the change of the line is tried first, then that of the calls
// that went wrong.
TEST(Fix, FailingCallsOfAnExpressionAreTriedSeparately) {
  for (const bool all : {true, false}) {
    TraceBuilder b;
    std::vector<record::OpId> calls;
    for (int i = 0; i < 4; ++i) {
      const double bad = all || i == 1 || i == 2 ? 0 : 1e-20;
      calls.push_back(b.op("aten::log", {{"self", b.tensor({1, bad})}}, {b.tensor({0, bad == 0 ? -kInf : -46})}));
      b.trace.ops[calls.back()].stack = b.trace.ops[calls.front()].stack;
    }
    b.born(calls[1]);
    for (const int i : {0, 2, 3}) {
      if (!all && i != 2) continue;
      locate::Birth birth = b.located.births.front();
      birth.op = calls[i];
      b.located.births.push_back(birth);
    }
    const Finding finding = b.explained();
    ASSERT_FALSE(finding.edits.empty());
    EXPECT_EQ(finding.edits.front().ops.size(), 4u);
    const Edit& last = finding.edits.back();
    if (all) {
      EXPECT_EQ(last.ops.size(), 4u);
    } else {
      EXPECT_EQ(last.ops, (std::vector<record::OpId>{calls[1], calls[2]}));
      EXPECT_NE(last.text.find(", in calls 2, 3 of the 4 from that line"), std::string::npos) << last.text;
      EXPECT_TRUE(last.code.empty());
    }
  }
}

TEST(Fix, RuleNamesEditsOfAllItsCalls) {
  TraceBuilder b;
  const auto p = b.tensor({1, 0, 1e-20});
  const auto call = b.op("aten::log", {{"self", p}}, {b.tensor({0, -kInf, -46})});
  const auto other = b.op("aten::log", {{"self", p}}, {b.tensor({0, -kInf, -46})});
  const auto elsewhere = b.op("aten::log", {{"self", p}}, {b.tensor({0, -kInf, -46})});
  b.trace.ops[other].stack = b.trace.ops[call].stack;
  b.born(call);
  const Finding finding = b.explained();
  // Three of both calls, then of the one that is a birth, then the two clamps wherever the same is read.
  ASSERT_EQ(finding.edits.size(), 8u);
  EXPECT_EQ(finding.edits[0].arg, "self");
  EXPECT_EQ(finding.edits[0].min, 1e-12);
  EXPECT_EQ(finding.edits[0].code, ".clamp(min=1e-12)");
  EXPECT_EQ(finding.edits[1].min, 1.2e-38);  // what is reported is what is tried, and no subnormal number
  EXPECT_EQ(finding.edits[0].ops, (std::vector<record::OpId>{call, other}));
  EXPECT_NE(elsewhere, other);
}

TEST(Fix, ABackwardBirthIsMendedInForward) {
  TraceBuilder b;
  const auto x = b.tensor({4, 0});
  const auto root = b.tensor({2, 0});
  const auto forward = b.op("aten::sqrt", {{"self", x}}, {root});
  b.begin_node("SqrtBackward0", forward);
  const auto birth = b.op("aten::div", {{"self", b.tensor({1, 1})}, {"other", TraceBuilder::holding(root, {4, 0})}},
                          {b.tensor({0.25, kInf})});
  b.end_node();
  b.born(birth);
  const Finding finding = b.explained();
  ASSERT_FALSE(finding.edits.empty());
  EXPECT_EQ(finding.edits.front().ops, std::vector<record::OpId>{forward});
  EXPECT_EQ(finding.edits.back().kind, Edit::Kind::kLeaveOut);
}

}  // namespace
}  // namespace finitude::explain
