// What is judged where a change is tried: a limit, a value that an exception was about, a step without results.
#include <gtest/gtest.h>

#include <cmath>

#include "explain/fix.h"
#include "explain/table_step.h"

namespace finitude::explain {
namespace {

using replay::Edit;

TEST(Fix, QuotientOfZerosGetsItsNonzeroLimit) {
  const auto fix_of = [](double (*quotient)(double)) {
    Finding finding = with_edits(1);
    finding.beside.emplace();
    TableStep step;
    step.quotient = quotient;
    step.answers = {that_ran()};
    try_on_step(finding, step, {});
    return finding;
  };
  const Finding sine = fix_of([](double v) { return std::sin(v) / v; });
  EXPECT_EQ(sine.fix_edit->kind, Edit::Kind::kLeaveOut);
  EXPECT_EQ(sine.fix_edit->to, 1);
  EXPECT_NE(sine.text.find("tends to 1"), std::string::npos) << sine.text;
  EXPECT_NE(sine.fix_text.find("its limit"), std::string::npos) << sine.fix_text;
  for (const auto none :
       {+[](double v) { return std::fabs(v) / v; }, +[](double v) { return 1 / v; }, +[](double) { return 0.0; }})
    EXPECT_EQ(fix_of(none).fix_tried, "edit 0");
  EXPECT_EQ(fix_of([](double) { return 0.2312; }).fix_tried, "edit 0");  // of this step's values: no constant
}

TEST(Fix, LimitFromOneSideIsReportedAsOne) {
  const auto text_of = [](double (*quotient)(double), bool above) {
    Finding finding = with_edits(1);
    finding.beside.emplace();
    finding.beside->above = above;
    finding.beside->below = !above;
    TableStep step;
    step.quotient = quotient;
    step.answers = {that_ran()};
    try_on_step(finding, step, {});
    return finding.text;
  };
  const auto sign = [](double v) { return std::fabs(v) / v; };
  EXPECT_NE(text_of(sign, true).find("tends to 1 from above"), std::string::npos) << text_of(sign, true);
  EXPECT_NE(text_of(sign, false).find("tends to -1 from below"), std::string::npos) << text_of(sign, false);
  const auto root = [](double v) { return std::sqrt(v) / std::sqrt(v); };  // is not defined below
  EXPECT_NE(text_of(root, true).find("tends to 1: that is its limit"), std::string::npos) << text_of(root, true);
}

// What the program makes of the changed value is not known: it may end at the same line.
TEST(Fix, NothingIsVerifiedByTheValueThatAnExceptionWasAbout) {
  Finding finding = with_edits(2);
  TableStep step;
  step.judges = "value cov";
  step.answers = {that_ran({"value cov"}), that_ran()};
  try_on_step(finding, step, {});
  EXPECT_FALSE(finding.fix_verified);
  EXPECT_EQ(finding.fix_tried, "edit 1");
  EXPECT_EQ(finding.fix_outcome.rfind("value cov finite", 0), 0u) << finding.fix_outcome;
}

// Its learning rate of that iteration was computed from a loss that was NaN.
TEST(Fix, UpdateOfNumbersFromTheFailedStepRefutesNothing) {
  for (const bool in_optimizer : {false, true}) {
    Finding finding = with_edits(1);
    finding.in_optimizer = in_optimizer;
    TableStep step;
    step.answers = {that_ran({"parameter weight", "parameter bias"})};
    try_on_step(finding, step, {});
    EXPECT_FALSE(finding.fix_verified);
    EXPECT_EQ(finding.fix_outcome.rfind("not finite:", 0) == 0, in_optimizer) << finding.fix_outcome;
  }
}

TEST(Fix, StepWithoutResultsIsNotCalledFinite) {
  for (const bool has_results : {true, false}) {
    Finding finding = with_edits(1);
    TableStep step;
    step.why_not = "it holds nothing to compare with";
    step.played = {3, 3, 0, 1, has_results};
    try_on_step(finding, step, {});
    EXPECT_EQ(finding.experiments.size(), has_results ? 1u : 0u);
  }
}

}  // namespace
}  // namespace finitude::explain
