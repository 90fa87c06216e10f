// The maximum that is subtracted from the exponents of a softmax or logsumexp that the program writes out.
#include "explain/written_softmax.h"

#include <gtest/gtest.h>

#include "explain/trace_builder.h"

namespace finitude::explain {
namespace {

using replay::Edit;
using B = TraceBuilder;

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

// All exponentials of a row are zero, and so is their sum.
TEST(SumOfSoftmax, ItsMaximumIsSubtractedWhereItUnderflows) {
  B b;
  const auto e = B::shaped(b.tensor({0, 0, 0.5, 0.2}), {2, 2}), sums = B::shaped(b.tensor({0, 0.7}), {2, 1});
  b.op("aten::exp", {{"self", B::shaped(b.tensor({-200, -300, -0.7, -1.6}), {2, 2})}}, {e});
  b.op("aten::sum", {{"self", e}}, {sums}, {{"dim", "[1]", std::nullopt, false}});
  b.born(b.op("aten::div", {{"self", e}, {"other", sums}}, {B::shaped(b.tensor({kNaN, kNaN, 0.7, 0.3}), {2, 2})}));
  const Finding found = b.explained();
  ASSERT_EQ(found.cause_class, "underflow");
  EXPECT_EQ(found.edits.front().kind, Edit::Kind::kShift);
  EXPECT_EQ(found.edits.front().ops, std::vector<record::OpId>{0});
  EXPECT_GT(found.edits.size(), 1u);
  EXPECT_EQ(found.fix_text.rfind("torch.softmax(x, dim)", 0), 0u) << found.fix_text;
}

TEST(LogOfSum, ItsMaximumIsSubtractedAndAdded) {
  for (const bool read_again : {false, true}) {
    B b;
    const auto e = B::shaped(b.tensor({kInf, 1, 2, 3}), {2, 2}), sums = b.tensor({kInf, 5}),
               log = b.tensor({kInf, 1.6});
    b.op("aten::exp", {{"self", B::shaped(b.tensor({100, 0, 0.7, 1.1}), {2, 2})}}, {e});
    b.op("aten::sum", {{"self", e}}, {sums}, {{"dim", "[1]", std::nullopt, false}});
    const auto at = b.op("aten::log", {{"self", sums}}, {log});
    if (read_again) b.op("aten::mean", {{"self", e}}, {b.tensor({kInf})});
    b.born(0).path = {1, at};
    const Finding found = b.explained();
    ASSERT_EQ(found.cause_class, "exp-overflow");
    const Edit& first = found.edits.front();
    EXPECT_EQ(first.kind == Edit::Kind::kShift && first.added_to == at, !read_again);
    EXPECT_TRUE(first.code.empty() || read_again) << first.code;
  }
}

TEST(LogOfSum, ItsMaximumIsSubtractedAndAddedWhereItUnderflows) {
  B b;
  const auto e = B::shaped(b.tensor({0, 0, 0.5, 0.2}), {2, 2}), sums = b.tensor({0, 0.7});
  b.op("aten::exp", {{"self", B::shaped(b.tensor({-200, -300, -0.7, -1.6}), {2, 2})}}, {e});
  b.op("aten::sum", {{"self", e}}, {sums}, {{"dim", "[1]", std::nullopt, false}});
  const auto log = b.op("aten::log", {{"self", sums}}, {b.tensor({-kInf, -0.36})});
  b.born(log);
  const Finding found = b.explained();
  ASSERT_EQ(found.cause_class, "underflow");
  EXPECT_EQ(found.edits.front().added_to, log);
  EXPECT_EQ(found.edits.front().ops, std::vector<record::OpId>{0});
  EXPECT_GT(found.edits.size(), 1u);
}

}  // namespace
}  // namespace finitude::explain
