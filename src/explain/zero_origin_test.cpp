// Where the zero comes from at which an operator has no value, and the maximum that a softmax subtracts.
#include "explain/zero_origin.h"

#include <gtest/gtest.h>

#include "explain/origin.h"
#include "explain/trace_builder.h"

namespace finitude::explain {
namespace {

using record::Origin;
using replay::Edit;
using B = TraceBuilder;

bool zero_text_has(const Finding& finding, const std::string& words) { return finding.text.find(words) != std::string::npos; }

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
  EXPECT_TRUE(zero_text_has(of_table("", {1, 0}), "; the zero is read from a table at model.py:1")) << of_table("", {1, 0}).text;
}

TEST(ZeroOrigin, AFunctionThatCutsNegativeNumbersOff) {
  B b;
  const auto cut = b.tensor({0, 0.5});
  b.op("aten::relu", {{"self", b.tensor({-0.1, 0.5}, sense::DType::kFloat32, Origin::kParameter, "diagonal")}}, {cut});
  b.born(b.op("aten::log", {{"self", cut}}, {b.tensor({-kInf, -0.7})}));
  const Finding found = b.explained();
  EXPECT_TRUE(zero_text_has(found, "; aten::relu at model.py:1 makes it of a negative number in diagonal")) << found.text;
}

TEST(ZeroOrigin, WhatHasAName) {
  B b;
  b.born(b.op("aten::log", {{"self", b.tensor({0, 0.5, 2}, sense::DType::kFloat32, Origin::kBatch, "batch[1]")}},
              {b.tensor({-kInf, -0.7, 0.7})}));
  const Finding found = b.explained();
  EXPECT_TRUE(zero_text_has(found, "; the zero is in batch[1], which has 1 zero among 3 values")) << found.text;
}

TEST(ZeroOrigin, NothingOfAZeroThatWasComputed) {
  B b;
  const auto difference = b.tensor({0, 0.5});
  b.op("aten::sub", {{"self", b.tensor({1, 1})}, {"other", b.tensor({1, 0.5})}}, {difference});
  b.born(b.op("aten::log", {{"self", difference}}, {b.tensor({-kInf, -0.7})}));
  EXPECT_FALSE(zero_text_has(b.explained(), "; the zero is")) << b.explained().text;
}

struct Softmax {
  B b;
  record::OpId exp = record::kNone, sum = record::kNone;

  // exp(x) of two rows of two over the sums along `dim`; the sums have this shape.
  Softmax(const std::string& dim, std::vector<std::int64_t> sums, bool epsilon = false) {
    const auto e = B::shaped(b.tensor({kInf, 1, 2, 3}), {2, 2});
    const auto s = B::shaped(b.tensor({kInf, 5}), sums), plus = B::shaped(b.tensor({kInf, 5}), sums);
    exp = b.op("aten::exp", {{"self", B::shaped(b.tensor({100, 0, 1, 1.1}), {2, 2})}}, {e});
    sum = b.op("aten::sum", {{"self", e}}, {s}, {{"dim", dim, std::nullopt, false}});
    if (epsilon) b.op("aten::add", {{"self", s}, {"other", b.number(1e-8)}}, {plus});
    b.op("aten::div", {{"self", e}, {"other", epsilon ? plus : s}}, {B::shaped(b.tensor({kNaN, 0, 0.4, 0.6}), {2, 2})});
    b.born(exp);
  }
};

TEST(SumOfSoftmax, IsFoundWhereEachRowIsOverItsOwnSum) {
  const Softmax rows("[1]", {2, 1}), columns("[0]", {1, 2}), with_epsilon("[-1]", {2, 1}, true);
  for (const Softmax* s : {&rows, &columns, &with_epsilon}) EXPECT_EQ(sum_of_softmax(s->b.trace, s->exp), s->sum);
  const Softmax mixed("[1]", {2});  // broadcast along the other dimension
  EXPECT_EQ(sum_of_softmax(mixed.b.trace, mixed.exp), record::kNone);
}

TEST(SumOfSoftmax, ItsMaximumIsSubtractedFirst) {
  Softmax s("[1]", {2, 1});
  const Finding found = s.b.explained();
  ASSERT_EQ(found.cause_class, "exp-overflow");
  ASSERT_FALSE(found.edits.empty());
  EXPECT_EQ(found.edits.front().kind, Edit::Kind::kShift);
  EXPECT_EQ(found.edits.front().dims, std::vector<std::int64_t>{1});
  EXPECT_EQ(found.edits.front().code, "{x} - {x}.amax(1, keepdim=True)");
  EXPECT_EQ(found.fix_text.find("not tried"), std::string::npos) << found.fix_text;
}

}  // namespace
}  // namespace finitude::explain
