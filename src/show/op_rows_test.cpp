#include "show/op_rows.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "show/findings.h"

namespace finitude::show {
namespace {

using nlohmann::json;

record::TensorUse tensor(const char* arg, double largest) {
  record::TensorUse use;
  use.arg = arg;
  use.dtype = sense::DType::kFloat32;
  use.shape = {4, 2};
  use.storage = 0;
  use.end = 32;
  use.health.numel = 8;
  use.health.max = use.health.absmax = largest;
  use.health.sum_sq = largest * largest;
  return use;
}

record::Trace trace_of_calls() {
  record::Trace trace;
  trace.stacks.push_back({{{"/srv/\"net\".py", 12, "forward"}, {"/srv/net.py", 3, "<module>"}}, "Net.norm", ""});
  trace.storages.push_back({record::Origin::kParameter, "norm.weight", 0});
  record::Op norm, node, division;
  norm.name = "aten::norm";
  norm.stack = 0;
  norm.inputs = {tensor("self", 2)};
  norm.outputs = {tensor("", 3)};
  norm.scalars = {{"p", "2", 2.0, false}, {"dim", "None", {}, false}};
  node.name = "NormBackward0";
  node.is_node = true;
  division.name = "aten::div";
  division.phase = record::Phase::kBackward;
  division.parent = 1;
  division.micro_batch = 1;
  division.inputs = {tensor("self", 0)};
  division.outputs = {tensor("", 1)};
  division.outputs[0].health.nan = 2;
  division.outputs[0].health.zero = 1;
  trace.ops = {norm, node, division};
  return trace;
}

// What no reader needs: absent, it is read as this.
json without_empty(const json& row) {
  json out = json::object();
  for (const auto& [key, value] : row.items()) {
    const bool is_count = key == "pos_inf" || key == "neg_inf" || key == "zero" || key == "line";
    if (value.is_null() || value == "" || (is_count && value == 0)) continue;
    out[key] = value;
    if (key != "inputs" && key != "outputs") continue;
    for (json& one : out[key]) one = without_empty(one);
  }
  return out;
}

TEST(OpRows, HoldWhatTheTableHolds) {
  const record::Trace trace = trace_of_calls();
  const record::OpId ops[] = {0, 2};
  const OpRows rows = op_rows(trace, ops, {.most_ops = 9, .most_bytes = 1 << 20});
  json table = op_table(trace, 9);
  for (json& row : table) row = without_empty(row);
  EXPECT_EQ(json::parse(rows.text), table);
  EXPECT_EQ(rows.ops, 2u);
}

TEST(OpRows, HaveTheAskedSideAndStacks) {
  const record::OpId ops[] = {0};
  const RowParts parts = {.inputs = false, .stacks = true, .most_ops = 9, .most_bytes = 1 << 20};
  const json row = json::parse(op_rows(trace_of_calls(), ops, parts).text)[0];
  EXPECT_TRUE(row["inputs"].empty());
  EXPECT_EQ(row["outputs"].size(), 1u);
  EXPECT_EQ(row["stack"], json({"/srv/\"net\".py:12 in forward", "/srv/net.py:3 in <module>"}));
}

TEST(OpRows, EndWhereTheirBoundsAre) {
  const record::OpId ops[] = {0, 2};
  const std::size_t one = op_rows(trace_of_calls(), ops, {.most_ops = 1, .most_bytes = 1 << 20}).text.size();
  for (const RowParts& parts :
       {RowParts{.most_ops = 1, .most_bytes = 1 << 20}, RowParts{.most_ops = 9, .most_bytes = one}}) {
    const OpRows rows = op_rows(trace_of_calls(), ops, parts);
    EXPECT_EQ(rows.ops, 1u);
    EXPECT_EQ(json::parse(rows.text).size(), 1u);
  }
  EXPECT_EQ(op_rows(trace_of_calls(), ops, {.most_ops = 9, .most_bytes = 2}).text, "[]");
}

}  // namespace
}  // namespace finitude::show
