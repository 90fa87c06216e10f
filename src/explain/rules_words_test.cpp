// What is advised where a function has two edges, skips NaN, or can be computed another way.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "explain/trace_builder.h"

namespace finitude::explain {
namespace {

using B = TraceBuilder;

TEST(LogOfZero, LogitIsClampedAtBothEdges) {
  for (const bool saturated : {true, false}) {
    B b;
    const auto p = b.tensor({0, 1, 0.5});
    if (saturated) b.op("aten::sigmoid", {{"self", b.tensor({-300, 200, 0})}}, {p});
    b.born(b.op("aten::logit", {{"self", p}}, {b.tensor({-kInf, kInf, 0})}));
    TableLab lab;
    lab.answers = {{"clamp", {-6, 6, 0}}, {"float64", {-kInf, kInf, 0}}};
    b.lab = &lab;
    const Finding f = b.explained();
    EXPECT_EQ(f.cause_class, "log-of-zero");
    EXPECT_EQ(f.confidence, "proven");
    EXPECT_NE(f.text.find("both 0 and 1 are in self"), std::string::npos) << f.text;
    EXPECT_EQ(f.fix_text.find("binary_cross_entropy"), std::string::npos) << f.fix_text;
    EXPECT_EQ(f.fix_text.find("what the sigmoid was given") != std::string::npos, saturated) << f.fix_text;
    ASSERT_FALSE(f.edits.empty());
    EXPECT_TRUE(f.edits.front().min && f.edits.front().max);
  }
}

TEST(EmptyMean, OfNothingButNan) {
  for (const double given : {kNaN, kInf}) {
    B b;
    const auto ratings = b.tensor({given, 1}), target = b.tensor({kNaN, 1});
    const auto outer = b.op("aten::nanmean", {{"self", ratings}}, {target});
    const auto div = b.op("aten::div", {{"self", b.tensor({0, 1})}, {"other", b.tensor({0, 1})}}, {target});
    b.trace.ops[div].parent = outer;
    b.born(div).rows = {0};
    const Finding f = b.explained();
    EXPECT_EQ(f.cause_class, "division-by-zero");
    EXPECT_EQ(f.text.find("nanmean where every element is NaN at row 0") != std::string::npos, given != kInf) << f.text;
  }
}

TEST(DegenerateLinalg, AdvisesWhatFitsTheOperation) {
  const auto fix = [](const char* name, const char* arg) {
    B b;
    b.born(b.op(name, {{arg, b.tensor({1, 1, 1, 1})}}, {b.tensor({-kInf})}));
    return b.explained().fix_text;
  };
  EXPECT_EQ(fix("aten::logdet", "self").find("pinv"), std::string::npos);
  EXPECT_NE(fix("aten::linalg_inv", "A").find("pinv"), std::string::npos);
  for (const char* node : {"LinalgSvdBackward0", "LinalgEighBackward0"}) {
    B b;
    const auto call = b.op("aten::_linalg_svd", {{"A", b.tensor({1, 0, 0, 1})}}, {b.tensor({1, 1})});
    b.begin_node(node, call);
    b.born(b.op("aten::div", {{"self", b.tensor({0})}, {"other", b.tensor({0})}}, {b.tensor({kNaN})}));
    const char* const values = std::string(node).find("Svd") != std::string::npos ? "singular values" : "eigenvalues";
    EXPECT_NE(b.explained().fix_text.find(std::string("use only the ") + values), std::string::npos);
    EXPECT_NE(b.explained().text.find(std::string("differences of ") + values), std::string::npos);
  }
}

TEST(ExpOverflow, InverseOfSoftplusHasAnotherForm) {
  for (const bool logarithm : {true, false}) {
    B b;
    const auto big = b.tensor({kInf}), less = b.tensor({kInf}), out = b.tensor({kInf});
    auto& birth = b.born(b.op("aten::exp", {{"self", b.tensor({120})}}, {big}));
    const auto sub = b.op("aten::sub", {{"self", big}}, {less}, {B::scalar("other", 1)});
    const auto last = b.op(logarithm ? "aten::log" : "aten::sum", {{"self", less}}, {out});
    birth.path = {sub, last};
    const Finding f = b.explained();
    EXPECT_EQ(f.cause_class, "exp-overflow");
    EXPECT_EQ(f.fix_text.find("torch.log(-torch.expm1(-x))") != std::string::npos, logarithm) << f.fix_text;
    EXPECT_EQ(f.fix_text.find("maximum first"), std::string::npos);
  }
}

// The gradient of logaddexp at (-Inf, -Inf) is made in its node; what the program can change is what logaddexp reads.
TEST(InfinityMinusInfinity, EditsOfABackwardBirthAreOfItsForward) {
  for (const bool builtin : {true, false}) {
    B b;
    const auto self = b.tensor({-kInf, 0}), other = b.tensor({1, 2});
    const auto forward = b.op("aten::logaddexp", {{"self", self}, {"other", other}}, {b.tensor({1, 2})});
    b.begin_node(builtin ? "LogaddexpBackward0" : "MineBackward", forward);
    const auto birth = b.op("aten::sub", {{"self", self}, {"other", self}}, {b.tensor({kNaN, 0})});
    if (!builtin) b.trace.ops[birth].stack = b.line(9);
    b.end_node();
    b.born(birth);
    const Finding f = b.explained();
    EXPECT_EQ(f.cause_class, "infinity-minus-infinity");
    ASSERT_FALSE(f.edits.empty());
    EXPECT_EQ(f.edits.front().ops.front(), builtin ? forward : birth);
    EXPECT_EQ(f.edits.front().arg, "self");
    EXPECT_TRUE(f.edits.front().min && f.edits.front().max);
    EXPECT_EQ(std::ranges::count(f.edits, std::string("other"), &replay::Edit::arg), builtin ? 0 : 1);
    EXPECT_NE(f.fix_text.find("torch.finfo(dtype).min)"), std::string::npos) << f.fix_text;
  }
}

}  // namespace
}  // namespace finitude::explain
