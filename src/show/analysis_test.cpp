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

// The 0 is what the memory held that nobody wrote; after it the division is finite arithmetic with what it was given.
TEST(Analysis, UnwrittenMemoryBeginsTheBirths) {
  TraceBuilder b;
  const auto x = b.tensor({1}), made = b.tensor({0}), out = b.tensor({INFINITY});
  b.op("aten::empty", {}, {made});
  b.op("aten::div", {{"self", x}, {"other", made}}, {out});
  b.trace.sinks.push_back({"loss", "loss", out, record::kNone, 0});
  AnalysisOptions options;
  options.own_rules = [](const explain::Evidence&, explain::Finding* finding) {
    finding->handed_out_by = 0;
    return std::string();
  };
  const json births = analysis(b.trace, b.history, nullptr, options)["births"];
  ASSERT_EQ(births.size(), 2u);
  EXPECT_EQ(births[0]["phase"], "memory");
  EXPECT_EQ(births[0]["op"], "aten::empty");
  EXPECT_EQ(births[1]["op"], "aten::div");
}

TEST(Analysis, OneOfSeveralOperationsIsNamed) {
  const std::string file = testing::TempDir() + "finitude_analysis_test.py";
  std::ofstream(file) << "loss = (a / b + c / d).sum()\n";
  for (const bool has_two : {true, false}) {
    TraceBuilder b;
    const auto x = b.tensor({1}), y = b.tensor({0}), out = b.tensor({INFINITY}), fine = b.tensor({1});
    b.trace.stacks = {{{{file, 1, "f", -1, 8, 1, 13}}, "", ""}, {{{file, 1, "f", -1, 16, 1, 21}}, "", ""}};
    if (has_two) b.trace.ops[b.op("aten::div", {{"self", x}, {"other", x}}, {fine})].stack = 0;
    b.trace.ops[b.op("aten::div", {{"self", x}, {"other", y}}, {out})].stack = 1;
    b.trace.sinks.push_back({"loss", "loss", out, record::kNone, 0});
    const std::string text = analysis(b.trace, b.history, nullptr)["cause"]["text"];
    EXPECT_EQ(text.find("of that line it is c / d") != text.npos, has_two) << text;
  }
}

}  // namespace
}  // namespace finitude::show
