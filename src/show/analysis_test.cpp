#include "show/analysis.h"

#include <gtest/gtest.h>

#include <fstream>

#include <nlohmann/json.hpp>

#include "explain/trace_builder.h"

namespace finitude::show {
namespace {

using explain::TraceBuilder;
using nlohmann::json;

// Knows how the operands of any call are spread.
class SpreadLab : public explain::TableLab {
 public:
  std::vector<replay::Spread> known;
  std::vector<replay::Spread> spreads(record::OpId) override { return known; }
};

// x / y of two tensors with one shape, by 0, is the loss.
json births_of(explain::Lab* lab) {
  TraceBuilder b;
  const auto x = b.tensor({1, 2}), y = b.tensor({0, 1}), out = b.tensor({INFINITY, 2});
  b.op("aten::div", {{"self", x}, {"other", y}}, {out});
  b.trace.sinks.push_back({"loss", "loss", out, record::kNone, 0});
  return analysis(b.trace, b.history, lab)["births"];
}

TEST(Analysis, OperandsOfTheCulpritGetTheirExponents) {
  SpreadLab lab;
  lab.known = {{"self", {2}, {0, {1, 1}}}, {"other", {2}, {0, {1}}}};
  const json birth = births_of(&lab)[0];
  EXPECT_EQ(birth["inputs"][0]["exponents"], json({{"first", 0}, {"counts", {1, 1}}}));
  EXPECT_EQ(birth["inputs"][1]["exponents"], json({{"first", 0}, {"counts", {1}}}));
}

TEST(Analysis, OtherOperandsOfACallAreNotMistaken) {
  SpreadLab lab;
  lab.known = {{"weight", {2}, {5, {1}}}, {"other", {3}, {5, {1}}}, {"other", {2}, {0, {1}}}};
  const json birth = births_of(&lab)[0];
  EXPECT_FALSE(birth["inputs"][0].contains("exponents"));
  EXPECT_EQ(birth["inputs"][1]["exponents"]["first"], 0);
}

TEST(Analysis, WithoutALaboratoryThereAreNone) {
  const json births = births_of(nullptr);
  ASSERT_EQ(births.size(), 1u);
  EXPECT_FALSE(births[0]["inputs"][0].contains("exponents"));
}

TEST(Analysis, OneOfSeveralOperationsOfALineIsNamed) {
  const std::string file = testing::TempDir() + "finitude_analysis_test.py";
  std::ofstream(file) << "loss = (a / b + c / d).sum()\n";
  for (const bool has_two : {true, false}) {
    TraceBuilder b;
    const auto x = b.tensor({1}), y = b.tensor({0}), out = b.tensor({INFINITY}), fine = b.tensor({1});
    b.trace.stacks = {{{{file, 1, "f", -1, 8, 1, 13}}, ""}, {{{file, 1, "f", -1, 16, 1, 21}}, ""}};
    if (has_two) b.trace.ops[b.op("aten::div", {{"self", x}, {"other", x}}, {fine})].stack = 0;
    b.trace.ops[b.op("aten::div", {{"self", x}, {"other", y}}, {out})].stack = 1;
    b.trace.sinks.push_back({"loss", "loss", out, record::kNone, 0});
    const std::string text = analysis(b.trace, b.history, nullptr)["cause"]["text"];
    EXPECT_EQ(text.find("of that line it is c / d") != text.npos, has_two) << text;
  }
}

// all_gather_object: each rank gives an object, of which torch makes bytes, and unpacks those of all.
TEST(Analysis, ValuesWithinObjectsOfOtherProcessesAreTracedToTheirRank) {
  for (const bool is_sender : {true, false}) {
    TraceBuilder b;
    const auto zero = b.tensor({0}), mine = b.tensor({is_sender ? NAN : 1});
    const auto bytes = b.tensor({}, sense::DType::kOther), all = b.tensor({}, sense::DType::kOther);
    const auto got = b.tensor({NAN}), out = b.tensor({NAN});
    b.op("aten::div", {{"self", zero}, {"other", is_sender ? zero : mine}}, {mine});
    b.op("c10d::allgather_", {{"output_tensors", all}, {"input_tensors", bytes}}, {});
    b.op("aten::mul", {{"self", got}, {"other", zero}}, {out});
    b.trace.sinks.push_back({"loss", "loss", out, record::kNone, 0});
    const json found = analysis(b.trace, b.history, nullptr);
    EXPECT_EQ(found["births"][0]["op"], is_sender ? "aten::div" : "c10d::allgather_");
    EXPECT_EQ(found["births"][0]["phase"], is_sender ? "forward" : "communication");
    EXPECT_EQ(found["cause"]["class"], is_sender ? "division-by-zero" : "other-rank");
  }
}

}  // namespace
}  // namespace finitude::show
