// What other content of memory that nobody wrote makes of a finding, and what a plain form of the call says.
#include "explain/fill.h"

#include <gtest/gtest.h>

#include "explain/decompose.h"
#include "explain/trace_builder.h"

namespace finitude::explain {
namespace {

replay::StepTrial ran(std::vector<std::string> bad = {}, std::string difference = {}) {
  replay::StepTrial trial;
  trial.ran = true;
  trial.bad = std::move(bad);
  trial.difference = std::move(difference);
  return trial;
}

replay::FillTrial filled(replay::StepTrial zeros, replay::StepTrial nans) {
  return {std::move(zeros), std::move(nans), 0, "aten::empty", 12};
}

Finding overflow() {
  Finding finding;
  finding.cause_class = "overflow";
  finding.confidence = "proven";
  finding.fix_file = "/user/other.py";
  finding.experiments = {{"pow in float64", "finite", true}};
  finding.edits.resize(1);
  return finding;
}

record::Trace one_allocation() {
  TraceBuilder b;
  b.op("aten::empty", {}, {b.tensor({3e38})});
  return b.trace;
}

TEST(Fill, WhatNobodyWroteDecides) {
  const record::Trace trace = one_allocation();
  Finding finding = overflow();
  judge_fill(finding, filled(ran(), ran({"loss"})), &trace);
  EXPECT_EQ(finding.cause_class, "uninitialised-memory");
  EXPECT_EQ(finding.confidence, "proven");
  EXPECT_EQ(finding.fix_file, "/user/model.py");
  EXPECT_EQ(finding.fix_line, 1);
  EXPECT_TRUE(finding.edits.empty());
  ASSERT_EQ(finding.experiments.size(), 3u);
  EXPECT_FALSE(finding.experiments[0].predicted);  // of another cause
  EXPECT_EQ(finding.experiments[1].name, "whole step, 12 bytes of aten::empty that nobody had written filled with 0");
  EXPECT_TRUE(finding.experiments[1].predicted && finding.experiments[1].confirms);
  EXPECT_TRUE(finding.experiments[2].predicted && finding.experiments[2].confirms);
}

TEST(Fill, AStepThatFailedOnceMayDependOnIt) {
  const record::Trace trace = one_allocation();
  const auto finding = finding_of_chance(filled(ran(), ran({"loss", "gradient of w"})), trace);
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->cause_class, "uninitialised-memory");
  EXPECT_EQ(finding->confidence, "likely");
  EXPECT_EQ(finding->fix_line, 1);
  EXPECT_EQ(finding->born_in, 0u);
  EXPECT_NE(finding->fix_text, "");
  ASSERT_EQ(finding->experiments.size(), 2u);
  EXPECT_EQ(finding->experiments[0].outcome, "not finite: loss and 1 more");
  EXPECT_FALSE(finding_of_chance(filled(ran(), ran()), trace));  // a mask hides it
  EXPECT_FALSE(finding_of_chance(filled({}, {}), trace));
}

TEST(Fill, OneExperimentIsNoProof) {
  Finding finding = overflow();
  judge_fill(finding, filled(ran(), {}), nullptr);
  EXPECT_EQ(finding.cause_class, "uninitialised-memory");
  EXPECT_EQ(finding.confidence, "likely");
  EXPECT_TRUE(finding.fix_file.empty());  // nobody knows its line, and that of the power is not it
}

TEST(Fill, WhereItDoesNotDecideTheFindingStays) {
  const record::Trace trace = one_allocation();
  const replay::FillTrial cases[] = {filled(ran({"loss"}, "the same bits as it was"), ran({"loss"})),
                                     filled(ran({"loss"}), ran({"loss"})), filled(ran(), ran()),
                                     filled({}, ran({"loss"}))};
  for (const replay::FillTrial& trial : cases) {
    Finding finding = overflow();
    judge_fill(finding, trial, &trace);
    EXPECT_EQ(finding.cause_class, "overflow");
    EXPECT_EQ(finding.edits.size(), 1u);
    EXPECT_TRUE(finding.experiments[0].predicted && finding.experiments[0].confirms);
    for (std::size_t i = 1; i < finding.experiments.size(); ++i) EXPECT_FALSE(finding.experiments[i].predicted);
  }
  Finding finding = overflow();
  judge_fill(finding, cases[0], &trace);
  EXPECT_EQ(finding.experiments[1].outcome, "not finite: loss, the same bits as it was");
}

TEST(Fill, WithoutSuchMemoryNothingIsSaid) {
  Finding finding = overflow();
  judge_fill(finding, {}, nullptr);
  EXPECT_EQ(finding.experiments.size(), 1u);
  EXPECT_EQ(finding.cause_class, "overflow");
}

TEST(ByParts, FindsWhetherTheKernelMakesIt) {
  const std::pair<std::vector<double>, const char*> cases[] = {
      {{0.5, 0.5}, "finite: the NaN comes from how its kernel computes it"},
      {{kNaN, 0.5}, "still NaN"},
      {{kInf, 0.5}, "Inf where it made NaN"}};
  for (const auto& [values, outcome] : cases) {
    TraceBuilder b;
    b.born(b.op("aten::gelu", {{"self", b.tensor({1, 2})}}, {b.tensor({kNaN, 0.5})}));
    TableLab lab;
    lab.answers = {{"parts", values}};
    b.lab = &lab;
    const Finding finding = b.explained();
    ASSERT_FALSE(finding.experiments.empty());
    const Experiment& last = finding.experiments.back();
    EXPECT_EQ(last.name, "gelu by plain operations");
    EXPECT_EQ(last.outcome, outcome);
    EXPECT_FALSE(last.predicted);
  }
}

TEST(ByParts, CallsWithoutPlainFormGetNoAnswer) {
  TraceBuilder b;
  b.born(b.op("aten::gelu", {{"self", b.tensor({1, 2})}}, {b.tensor({kNaN, 0.5})}));
  TableLab lab;
  b.lab = &lab;
  const Finding finding = b.explained();
  EXPECT_TRUE(finding.experiments.empty());
}

}  // namespace
}  // namespace finitude::explain
