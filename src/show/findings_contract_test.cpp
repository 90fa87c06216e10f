// What findings() writes must be a report that problem() accepts and every renderer shows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "show/findings.h"
#include "show/page.h"
#include "show/sample_reports.h"
#include "show/show.h"

namespace finitude::show {
namespace {

using ::testing::HasSubstr;

record::TensorUse tensor(const char* arg, std::uint64_t nan, std::uint64_t zero) {
  record::TensorUse use;
  use.arg = arg;
  use.dtype = sense::DType::kFloat32;
  use.shape = {4, 2};
  use.health.numel = 8;
  use.health.nan = nan;
  use.health.zero = zero;
  use.health.max = 1;
  return use;
}

TEST(FindingsContract, ABackwardBirthGoesThroughEveryRenderer) {
  record::Trace trace;
  trace.stacks.push_back({{{"/srv/fits/cls/model.py", 12, "forward"}}, "Net.norm", ""});
  trace.storages.push_back({record::Origin::kBatch, "batch[0]", 0});
  record::Op forward, node, division;
  forward.name = "aten::linalg_vector_norm";
  forward.stack = 0;
  forward.inputs = {tensor("self", 0, 2)};
  node.name = "LinalgVectorNormBackward0";
  node.is_node = true;
  node.phase = record::Phase::kBackward;
  node.forward = 0;
  division.name = "aten::div";
  division.phase = record::Phase::kBackward;
  division.parent = division.node = 1;
  division.inputs = {tensor("self", 0, 0), tensor("other", 0, 2)};
  division.outputs = {tensor("", 2, 0)};
  division.scalars = {{"rounding_mode", "floor", std::nullopt, false}};
  trace.ops = {forward, node, division};
  locate::Located located;
  locate::Birth birth;
  birth.kind = "backward";
  birth.op = 2, birth.node = 1, birth.forward = 0, birth.absorbed_by = 0;
  birth.rows = {1, 3};
  birth.path = {2};
  locate::Birth data;
  data.kind = "data";
  data.storage = 0;
  located.births = {birth, data};
  explain::Finding finding;
  finding.cause_class = "division-by-zero";
  finding.confidence = "proven";
  finding.text = "norm of a zero row";
  finding.experiments = {{"eps", "finite", true}};

  nlohmann::json report = sample("loss_forward");
  report["alarms"][0].update(findings(trace, located, finding));
  report["trace"] = {{"ops", op_table(trace, 100)}};
  EXPECT_EQ(problem(report), "");
  const std::string shown = terminal(report, {false, 0, true});
  EXPECT_THAT(shown, HasSubstr("LinalgVectorNormBackward0 (aten::div)"));
  EXPECT_THAT(shown, HasSubstr("self [4,2] float32"));
  EXPECT_THAT(shown, HasSubstr("rounding_mode = floor"));
  EXPECT_THAT(shown, HasSubstr("also in data   batch[0]   model.py:12"));
  EXPECT_THAT(shown, HasSubstr("2 x NaN at rows 1, 3"));
  EXPECT_THAT(html_tables(report), HasSubstr("<table id=\"ops\">"));
  EXPECT_THAT(html(report), HasSubstr("LinalgVectorNormBackward0"));
}

}  // namespace
}  // namespace finitude::show
