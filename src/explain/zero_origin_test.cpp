// Where the zero comes from at which an operator has no value, and who else reads what is not finite.
#include "explain/zero_origin.h"

#include <gtest/gtest.h>

#include "explain/trace_builder.h"

namespace finitude::explain {
namespace {

using record::Origin;
using B = TraceBuilder;

bool zero_text_has(const Finding& finding, const std::string& words) {
  return finding.text.find(words) != std::string::npos;
}

// sqrt of what a look-up gave, and a division by it.
Finding of_table(const std::string& name, const std::vector<double>& table) {
  B b;
  const auto held = b.tensor(table, sense::DType::kFloat32, name.empty() ? Origin::kUnknown : Origin::kBuffer, name);
  const auto taken = b.tensor({0, 0.5}), root = b.tensor({0, 0.7});
  b.op("aten::index", {{"self", held}}, {taken});
  b.op("aten::sqrt", {{"self", taken}}, {root});
  b.born(b.op("aten::div", {{"self", b.tensor({1, 1})}, {"other", root}}, {b.tensor({kInf, 1.4})}));
  return b.explained();
}

TEST(ZeroOrigin, ATableThatIsLookedUp) {
  const Finding named = of_table("alpha_bar", {1, 0.5, 0.2, 0});
  EXPECT_TRUE(zero_text_has(named, "; the zero is read from alpha_bar at model.py:1, which has 1 zero among 4 values"))
      << named.text;
  EXPECT_TRUE(zero_text_has(of_table("", {1, 0}), "; the zero is read from a table at model.py:1"))
      << of_table("", {1, 0}).text;
}

TEST(ZeroOrigin, AFunctionThatCutsNegativeNumbersOff) {
  B b;
  const auto cut = b.tensor({0, 0.5});
  b.op("aten::relu", {{"self", b.tensor({-0.1, 0.5}, sense::DType::kFloat32, Origin::kParameter, "diagonal")}}, {cut});
  b.born(b.op("aten::log", {{"self", cut}}, {b.tensor({-kInf, -0.7})}));
  const Finding found = b.explained();
  EXPECT_TRUE(zero_text_has(found, "; aten::relu at model.py:1 makes it of a negative number in diagonal"))
      << found.text;
}

TEST(ZeroOrigin, WhatHasAName) {
  B b;
  b.born(b.op("aten::log", {{"self", b.tensor({0, 0.5, 2}, sense::DType::kFloat32, Origin::kBatch, "batch[1]")}},
              {b.tensor({-kInf, -0.7, 0.7})}));
  const Finding found = b.explained();
  EXPECT_TRUE(zero_text_has(found, "; the zero is in batch[1], which has 1 zero among 3 values")) << found.text;
}

// exp overflows, x / Inf is 0, and the logarithm has no value there: the overflow is the cause, not the zero.
TEST(ZeroOrigin, AQuotientByInfinityIsExplainedByTheInfinity) {
  for (const bool infinite : {true, false}) {
    B b;
    const auto whole = b.tensor({infinite ? kInf : 3e38}), quotient = b.tensor({0});
    const auto first = b.op("aten::exp", {{"self", b.tensor({infinite ? 200.0 : 88.0})}}, {whole});
    b.op("aten::div", {{"self", b.tensor({infinite ? 1.0 : 0.0})}, {"other", whole}}, {quotient});
    const locate::Birth overflow = b.born(first);
    b.born(b.op("aten::log", {{"self", quotient}}, {b.tensor({-kInf})}));
    if (infinite) b.located.births.push_back(overflow);
    const Finding found = b.explained();
    EXPECT_EQ(found.cause_class, infinite ? "exp-overflow" : "log-of-zero") << found.text;
    EXPECT_EQ(zero_text_has(found, "divides by it, and aten::log"), infinite) << found.text;
  }
}

// A layer begins with a copy of its bias, whose zeros say nothing of those that it gives.
TEST(ZeroOrigin, NothingOfABias) {
  B b;
  const auto out = b.tensor({0, 0.5});
  b.op("aten::addmm",
       {{"self", b.tensor({0, 0}, sense::DType::kFloat32, Origin::kParameter, "bias")},
        {"mat1", b.tensor({0, 1})},
        {"mat2", b.tensor({1, 1})}},
       {out});
  b.born(b.op("aten::div", {{"self", b.tensor({1, 1})}, {"other", out}}, {b.tensor({kInf, 2})}));
  EXPECT_EQ(b.explained().text.find("bias"), std::string::npos) << b.explained().text;
}

TEST(ZeroOrigin, NothingOfAZeroThatWasComputed) {
  B b;
  const auto difference = b.tensor({0, 0.5});
  b.op("aten::sub", {{"self", b.tensor({1, 1})}, {"other", b.tensor({1, 0.5})}}, {difference});
  b.born(b.op("aten::log", {{"self", difference}}, {b.tensor({-kInf, -0.7})}));
  EXPECT_FALSE(zero_text_has(b.explained(), "; the zero is")) << b.explained().text;
}

// A sum and a product of one batch: what is not finite in it is replaced for both.
TEST(OtherReaders, AreFilledTogether) {
  B b;
  const auto batch = b.tensor({kInf, 1, 2}, sense::DType::kFloat32, Origin::kBatch, "batch[0]");
  b.op("aten::sum", {{"self", batch}}, {b.tensor({kInf})});
  b.op("aten::mul", {{"self", b.tensor({1, 1, 1})}, {"other", batch}}, {b.tensor({kInf, 1, 2})});
  auto& birth = b.born(0);
  birth.kind = "data";
  birth.op = record::kNone;
  birth.storage = batch.storage;
  birth.first_reader = 0;
  const Finding found = b.explained();
  ASSERT_EQ(found.cause_class, "bad-data");
  ASSERT_FALSE(found.edits.empty());
  const replay::Edit& last = found.edits.back();
  EXPECT_EQ(last.ops, (std::vector<record::OpId>{0, 1}));
  EXPECT_EQ(last.args, (std::vector<std::string>{"self", "other"}));
}

}  // namespace
}  // namespace finitude::explain
