// The rule for divisions by zero: what the zero is, and what is advised and tried against it.
#include <gtest/gtest.h>

#include <algorithm>

#include "explain/trace_builder.h"

namespace finitude::explain {
namespace {

using sense::DType;
using B = TraceBuilder;

TEST(DivisionByZero, FloatsAndIntegersAlike) {
  B b;
  b.born(b.op("aten::div", {{"self", b.tensor({0, 1})}, {"other", b.tensor({0, 2})}}, {b.tensor({kNaN, 0.5})}));
  EXPECT_EQ(b.explained().cause_class, "division-by-zero");
  B count;
  count.born(count.op("aten::div", {{"self", count.tensor({3})}, {"other", count.tensor({0}, DType::kOther)}},
                      {count.tensor({kInf})}));
  const Finding f = count.explained();
  EXPECT_EQ(f.cause_class, "division-by-zero");
  EXPECT_NE(f.text.find("an integer zero"), std::string::npos) << f.text;
}

TEST(DivisionByZero, ProgramNumberIsNoTensorToFix) {
  for (const bool integral : {true, false}) {
    B b;
    const auto zero = integral ? b.integer() : b.number(0);
    b.born(b.op("aten::div", {{"self", b.tensor({3, 4})}, {"other", zero}}, {b.tensor({kInf, kInf})}));
    const Finding f = b.explained();
    EXPECT_NE(f.text.find("the divisor is the number 0"), std::string::npos) << f.text;
    EXPECT_EQ(f.fix_text.find("epsilon"), std::string::npos) << f.fix_text;
    EXPECT_EQ(f.edits.front().text, "the divisor 0 replaced by 1");
  }
}

TEST(DivisionByZero, TheAdviceIsWhatIsTriedFirst) {
  const auto of = [](double numerator, double quotient, double other) {
    B b;
    b.born(b.op("aten::div", {{"self", b.tensor({numerator, 1})}, {"other", b.tensor({0, other})}},
                {b.tensor({quotient, 1})}));
    return b.explained();
  };
  const Finding infinite = of(1, kInf, 2), both = of(0, kNaN, 2), signs = of(0, kNaN, -2);
  for (const Finding* f : {&infinite, &signs}) {
    EXPECT_EQ(f->edits.front().kind, replay::Edit::Kind::kReplace);
    EXPECT_NE(f->fix_text.find("torch.where(d == 0, 1, d)"), std::string::npos) << f->fix_text;
  }
  EXPECT_EQ(both.edits.front().kind, replay::Edit::Kind::kClamp);
  EXPECT_TRUE(both.clamps_divisor);
  EXPECT_FALSE(infinite.clamps_divisor);
  EXPECT_NE(both.fix_text.find("clamp the denominator"), std::string::npos) << both.fix_text;
}

// p / (1 - p) of a sigmoid that has come to 1; sqrt of a sum of squares, where a clamp of the root is too late.
TEST(DivisionByZero, SaysWhatSaturatedAndClampsWhatARootIsTakenOf) {
  B saturated;
  const auto p = saturated.tensor({1, 0.5}), rest = saturated.tensor({0, 0.5});
  saturated.op("aten::sigmoid", {{"self", saturated.tensor({200, 0})}}, {p});
  saturated.op("aten::rsub", {{"self", p}, {"other", saturated.number(1)}}, {rest});
  saturated.born(saturated.op("aten::div", {{"self", p}, {"other", rest}}, {saturated.tensor({kInf, 1})}));
  const Finding odds = saturated.explained();
  EXPECT_NE(odds.text.find("sigmoid saturated in float32"), std::string::npos) << odds.text;
  B b;
  const auto squares = b.tensor({0, 4}), norm = b.tensor({0, 2});
  const auto root = b.op("aten::sqrt", {{"self", squares}}, {norm});
  b.born(b.op("aten::div", {{"self", b.tensor({0, 2})}, {"other", norm}}, {b.tensor({kNaN, 1})}));
  const Finding f = b.explained();
  const auto of_root = std::ranges::find_if(f.edits, [&](const auto& edit) { return edit.ops.front() == root; });
  ASSERT_NE(of_root, f.edits.end());
  EXPECT_EQ(of_root->arg, "self");
}

TEST(DivisionByZero, DenominatorFactorIsTheZeroNorm) {
  for (const bool one : {true, false}) {
    B b;
    const auto a = b.tensor({0, 5}), c = b.tensor({one ? 2.0 : 0.0, 3}), product = b.tensor({0, 15});
    b.op("aten::linalg_vector_norm", {{"self", b.tensor({0, 0, 3, 4})}}, {a});
    b.op("aten::linalg_vector_norm", {{"self", b.tensor({0, 2, 0, 3})}}, {c});
    b.op("aten::mul", {{"self", a}, {"other", c}}, {product});
    b.born(b.op("aten::div", {{"self", b.tensor({0, 1})}, {"other", product}}, {b.tensor({kNaN, 0.1})}));
    const Finding f = b.explained();
    EXPECT_EQ(f.text.find("the norm of a zero vector") != std::string::npos, one) << f.text;
  }
}

TEST(DivisionByZero, ANormalisationWithoutEpsilonGetsOne) {
  B b;
  b.born(b.op("aten::native_layer_norm", {{"input", b.tensor({0, 0})}},
              {b.tensor({kNaN, kNaN}), b.tensor({0}), b.tensor({kInf})}));
  const Finding f = b.explained();
  EXPECT_NE(f.fix_text.find("eps=1e-5"), std::string::npos) << f.fix_text;
  EXPECT_TRUE(f.fix_is_no_edit);
}

TEST(DivisionByZero, NormalisedWeightHasAZeroRow) {
  const auto normalised = [](B& b, std::vector<double> norms) {
    b.born(b.op("aten::_weight_norm_interface", {{"v", b.tensor({0, 0, 3, 4})}, {"g", b.tensor({1, 1})}},
                {b.tensor({kNaN, kNaN, 0.6, 0.8}), b.tensor(norms)}));
  };
  B b;
  normalised(b, {0, 5});
  const Finding f = b.explained();
  EXPECT_EQ(f.cause_class, "division-by-zero");
  EXPECT_NE(f.text.find("the norm of a zero vector"), std::string::npos) << f.text;
  B other;
  normalised(other, {1, 5});
  EXPECT_FALSE(other.speaks("division-by-zero"));
}

// v = W^T u; v / v.norm(): with a weight of zeros it is the weight that is to change, not the norm.
TEST(DivisionByZero, NormOfAProductWithAZeroWeightNamesTheWeight) {
  for (const bool zero : {true, false}) {
    B b;
    const auto weight = b.tensor(zero ? std::vector<double>{0, 0} : std::vector<double>{0, 1}, DType::kFloat32,
                                 record::Origin::kParameter, "sn.weight");
    const auto v = b.tensor({0, 0}), norm = b.tensor({0});
    b.op("aten::mv", {{"self", weight}, {"vec", b.tensor({1, 0})}}, {v});
    b.op("aten::linalg_vector_norm", {{"self", v}}, {norm});
    b.born(b.op("aten::div", {{"self", v}, {"other", norm}}, {b.tensor({kNaN, kNaN})}));
    const Finding f = b.explained();
    EXPECT_EQ(f.text.find("the weight sn.weight, which is all zero") != std::string::npos, zero) << f.text;
    EXPECT_EQ(f.fix_text.find("small random numbers") != std::string::npos, zero) << f.fix_text;
  }
}

TEST(DivisionByZero, ZeroThatAnInfiniteDivisorMadeIsCalledThat) {
  for (const bool infinite : {true, false}) {
    B b;
    const auto share = b.tensor({0});
    b.op("aten::reciprocal", {{"self", b.tensor({infinite ? kInf : 1e30})}}, {share});
    b.born(b.op("aten::reciprocal", {{"self", share}}, {b.tensor({kInf})}));
    const std::string text = b.explained().text;
    EXPECT_EQ(text.find("division by an infinite value gave at model.py:1") != std::string::npos, infinite) << text;
  }
}

// alpha = rs / (p . Ap), in a loop: the second run of the line divides by what the first one led to.
TEST(DivisionByZero, AnIterationThatHasConvergedIsToBeLeft) {
  for (const bool loop : {true, false}) {
    B b;
    const auto first = b.tensor({0.5}), next = b.tensor({0});
    const auto before = b.op("aten::div", {{"self", b.tensor({1})}, {"other", b.tensor({2})}}, {first});
    b.op("aten::sub", {{"self", first}, {"other", b.tensor({0.5})}}, {next});
    const auto birth = b.op("aten::div", {{"self", next}, {"other", next}}, {b.tensor({kNaN})});
    if (loop) b.trace.ops[birth].stack = b.trace.ops[before].stack;
    b.born(birth);
    const Finding f = b.explained();
    EXPECT_EQ(f.text.find("from what this line gave before") != std::string::npos, loop) << f.text;
    EXPECT_EQ(f.fix_text.find("leave the loop") != std::string::npos, loop) << f.fix_text;
    EXPECT_EQ(f.fix_text.find("skip such a batch") == std::string::npos, loop) << f.fix_text;
  }
}

TEST(DivisionByZero, SilentWhereTheDenominatorIsOnlySmall) {
  B b;
  b.born(b.op("aten::div", {{"self", b.tensor({1e20})}, {"other", b.tensor({1e-30})}}, {b.tensor({kInf})}));
  EXPECT_FALSE(b.speaks("division-by-zero"));
  EXPECT_EQ(b.explained().cause_class, "overflow");
}

// (1 - p) ** 0.5 where p is exactly 1 somewhere, and exactly 0 elsewhere: no zero of p is what is differentiated at.
TEST(Underflow, OfAProbabilityThatIsZeroAndNotOne) {
  for (const bool from_one : {true, false}) {
    B b;
    const auto p = b.tensor({1, 0, .5}), rest = from_one ? b.tensor({0, 1, .5}) : p;
    b.op("aten::_softmax", {{"self", b.tensor({0, -1400, 0})}}, {p});
    if (from_one) b.op("aten::rsub", {{"self", p}, {"other", b.number(1)}}, {rest});
    const auto root = b.op("aten::pow", {{"self", rest}}, {b.tensor({0, 1, .7})}, {B::scalar("exponent", .5)});
    b.begin_node("PowBackward0", root);
    b.born(b.op("aten::pow", {{"self", rest}}, {b.tensor({kInf, 1, 1.4})}, {B::scalar("exponent", -.5)}));
    EXPECT_EQ(b.speaks("underflow"), !from_one);
  }
}

// tp / (tp + fp), both of the same scores: with tp alone moved away from zero the quotient would be 1.
TEST(DivisionByZero, ZerosThatReachAnOperandAnotherWayHaveNoLimit) {
  for (const bool both : {true, false}) {
    B b;
    const auto scores = b.tensor({0, 0}), tp = b.tensor({0, 0}), fp = b.tensor({0, 0}), sum = b.tensor({0, 0});
    b.op("aten::relu", {{"self", b.tensor({-1, -2})}}, {scores});
    b.op("aten::sin", {{"self", scores}}, {tp});
    b.op("aten::tan", {{"self", both ? scores : tp}}, {fp});
    b.op("aten::add", {{"self", tp}, {"other", fp}}, {sum});
    b.born(b.op("aten::div", {{"self", tp}, {"other", sum}}, {b.tensor({kNaN, kNaN})}));
    const Finding f = b.explained();
    ASSERT_TRUE(f.beside) << both;
    const auto& reads = f.beside->zeros.ops;  // the scores are moved where both are made of them
    EXPECT_EQ(std::ranges::find(reads, record::OpId{1}) != reads.end(), both);
  }
}

}  // namespace
}  // namespace finitude::explain
