#include "explain/wrapped.h"

#include <gtest/gtest.h>

#include "explain/trace_builder.h"

namespace finitude::explain {
namespace {

using B = TraceBuilder;
using sense::DType;

// integers = n * n; x = integers.float(); y = x * 2; what is born reads y.
struct Integers {
  B b;
  TableLab lab;
  record::OpId product = record::kNone;

  record::TensorUse as_floats(const std::vector<double>& values) {
    const auto integers = b.tensor({}, DType::kOther), n = b.tensor({}, DType::kOther);
    const auto x = b.tensor(values), y = b.tensor(values);
    product = b.op("aten::mul", {{"self", n}, {"other", n}}, {integers});
    b.op("aten::_to_copy", {{"self", integers}}, {x});
    b.op("aten::mul", {{"self", x}, {"other", b.number(2)}}, {y});
    b.lab = &lab;
    return y;
  }
  void wrap() { lab.integers[product] = {1, -128, 127, 180, 240, "int8"}; }
};

TEST(Wrapped, IntegersAreNamedInThePlaceOfTheClamp) {
  for (const char* name : {"aten::sqrt", "aten::log", "aten::log2"}) {
    for (const bool wrapped : {true, false}) {
      Integers i;
      const auto y = i.as_floats({-56, 3});
      if (wrapped) i.wrap();
      i.b.born(i.b.op(name, {{"self", y}}, {i.b.tensor({kNaN, 1})}));
      const Finding f = i.b.explained();
      EXPECT_EQ(f.edits.empty(), wrapped) << name;
      EXPECT_EQ(f.text.find("mul of int8 at model.py:1 leaves -128 to 127") != std::string::npos, wrapped) << f.text;
      EXPECT_EQ(f.fix_text.find("wider type") != std::string::npos, wrapped) << f.fix_text;
      EXPECT_EQ(f.fix_line, wrapped ? 1 : 4);
    }
  }
}

TEST(Wrapped, ZeroOfAProductIsDividedBy) {
  Integers i;
  const auto y = i.as_floats({0, 3});
  i.wrap();
  i.b.born(i.b.op("aten::div", {{"self", i.b.tensor({1, 1})}, {"other", y}}, {i.b.tensor({kInf, 0.3})}));
  const Finding f = i.b.explained();
  EXPECT_EQ(f.cause_class, "division-by-zero");
  EXPECT_EQ(f.fix_line, 1);
  EXPECT_TRUE(f.edits.empty());
}

TEST(Wrapped, IntegersReadAsTheyAre) {
  Integers i;
  const auto n = i.b.tensor({}, DType::kOther), integers = i.b.tensor({}, DType::kOther);
  i.product = i.b.op("aten::sub", {{"self", n}, {"other", n}}, {integers});
  i.b.lab = &i.lab;
  i.wrap();
  i.b.born(i.b.op("aten::sqrt", {{"self", integers}}, {i.b.tensor({kNaN, 1})}));
  EXPECT_NE(i.b.explained().text.find("wrapped around: sub of int8"), std::string::npos);
}

// A hash that wraps around by intent is no cause of what is computed of other values.
TEST(Wrapped, OtherOperandsAreNotFollowedThroughFunctions) {
  Integers i;
  const auto y = i.as_floats({-56, 3});
  i.wrap();
  const auto mixed = i.b.tensor({-1, 2});
  i.b.op("aten::sin", {{"self", y}}, {mixed});
  i.b.born(i.b.op("aten::sqrt", {{"self", mixed}}, {i.b.tensor({kNaN, 1.4})}));
  EXPECT_EQ(i.b.explained().text.find("wrapped"), std::string::npos);
}

TEST(OptimizerArithmetic, SaysWhatTheOperationSaysByItself) {
  for (const bool negative : {true, false}) {
    B b;
    b.phase = record::Phase::kOptimizer;
    const auto values = b.tensor({negative ? -0.5 : 1, 2});
    b.born(b.op("aten::sqrt", {{"self", values}}, {b.tensor({kNaN, 1.4})}));
    const Finding f = b.explained();
    EXPECT_EQ(f.cause_class, "optimizer-arithmetic");
    EXPECT_EQ(f.text.find("of a negative number") != std::string::npos, negative) << f.text;
    EXPECT_EQ(f.edits.empty(), !negative);
    EXPECT_EQ(f.fix_text.find("check the optimizer's epsilon") == std::string::npos, negative);
  }
}

// (L L^T)^(-1/4) of a matrix with too small a rank: an eigenvalue is -6e-9, zero up to rounding.
TEST(OptimizerArithmetic, RootOfASingularMatrixIsNamed) {
  for (const double smallest : {-6e-9, 0.0, -0.2}) {
    B b;
    b.phase = record::Phase::kOptimizer;
    const auto matrix = B::shaped(b.tensor({1, 0, 0, 0.1}), {2, 2});
    const auto values = b.tensor({smallest, 1});
    b.op("aten::_linalg_eigh", {{"A", matrix}}, {values, B::shaped(b.tensor({1, 0, 0, 1}), {2, 2})});
    const double bad = smallest == 0 ? kInf : kNaN;
    b.born(b.op("aten::pow", {{"self", values}}, {b.tensor({bad, 1})}, {B::scalar("exponent", -0.25)}));
    const Finding f = b.explained();
    EXPECT_EQ(f.cause_class, "optimizer-arithmetic");
    EXPECT_EQ(f.fix_text.find("multiple of the identity") != std::string::npos, smallest > -0.1) << f.fix_text;
    EXPECT_FALSE(f.edits.empty());
  }
}

TEST(OptimizerArithmetic, BiasCorrectionBeforeTheFirstStep) {
  for (const double count : {0.0, 1.0}) {
    B b;
    b.phase = record::Phase::kOptimizer;
    const auto n = b.tensor({count}), power = b.tensor({1}), difference = b.tensor({0});
    b.op("aten::pow", {{"self", b.number(0.9)}, {"exponent", n}}, {power});
    b.op("aten::rsub", {{"self", power}}, {difference}, {B::scalar("other", 1)});
    b.born(b.op("aten::div", {{"self", b.tensor({0.1})}, {"other", difference}}, {b.tensor({kInf})}));
    const Finding f = b.explained();
    EXPECT_EQ(f.cause_class, "optimizer-arithmetic");
    EXPECT_EQ(f.fix_text.find("count the step before this line") != std::string::npos, count == 0) << f.fix_text;
    EXPECT_EQ(f.fix_is_no_edit, count == 0);
    ASSERT_FALSE(f.edits.empty());
    EXPECT_EQ(f.edits.front().code.empty(), count == 0);
  }
}

TEST(CorruptedState, NumberOfTheProgramIsNamed) {
  for (const double factor : {-kInf, 0.5}) {
    for (const bool as_scalar : {true, false}) {
      B b;
      const auto teacher = b.tensor({1, -1}, DType::kFloat32, record::Origin::kBuffer, "teacher");
      auto other = as_scalar ? b.tensor({1, 1}) : b.number(factor);
      std::vector<record::ScalarUse> scalars;
      if (as_scalar) scalars = {B::scalar("alpha", factor)};
      auto& birth = b.born(b.op(as_scalar ? "aten::add_" : "aten::mul_", {{"self", teacher}, {"other", other}},
                                {B::holding(teacher, {kInf, -kInf})}, scalars));
      birth.kind = "state";
      birth.storage = teacher.storage;
      const Finding f = b.explained();
      EXPECT_EQ(f.cause_class, "corrupted-state");
      EXPECT_EQ(f.text.find("the number ") != std::string::npos, !std::isfinite(factor)) << f.text;
      EXPECT_EQ(f.fix_text.starts_with("look where that number"), !std::isfinite(factor)) << f.fix_text;
    }
  }
}

// y = x / n, and (g - y) / n in the same backward: the first NaN hides that the second division fails as well.
TEST(Edits, OfEveryDivisionByTheSameZero) {
  for (const bool same : {true, false}) {
    B b;
    const auto zero = b.tensor({0, 2}), other = b.tensor({0, 2});
    b.begin_node("UnitBackward", b.op("Unit", {{"x", b.tensor({0, 2})}}, {b.tensor({0, 1})}));
    const auto y = b.tensor({kNaN, 1});
    const auto first = b.op("aten::div", {{"self", b.tensor({0, 2})}, {"other", zero}}, {y});
    const auto second = b.op("aten::div", {{"self", y}, {"other", same ? zero : other}}, {b.tensor({kNaN, 1})});
    for (const auto id : {first, second}) b.trace.ops[id].stack = b.line(static_cast<int>(id) + 1);
    b.end_node();
    b.born(first);
    const Finding f = b.explained();
    EXPECT_EQ(f.cause_class, "wrong-backward");
    ASSERT_FALSE(f.edits.empty());
    EXPECT_EQ(f.edits.front().ops, std::vector<record::OpId>{first});
    EXPECT_EQ(f.edits.back().ops.size(), same ? 2u : 1u);
    EXPECT_EQ(f.edits.back().also.find("model.py:") != std::string::npos, same) << f.edits.back().also;
  }
}

}  // namespace
}  // namespace finitude::explain
