// Rules that go by the operands of an op, each on the failure it is for and on an innocent twin: the same op
// in good use, or bad for another reason.
#include <gtest/gtest.h>

#include "explain/trace_builder.h"

namespace finitude::explain {
namespace {

using record::Phase;
using sense::DType;
using B = TraceBuilder;

TEST(LogOfZero, OneMinusSaturatedSigmoid) {
  B b;
  const auto h = b.tensor({1, 0.5}), rest = b.tensor({0, 0.5});
  b.op("aten::sigmoid", {{"self", b.tensor({40, 0})}}, {h});
  b.op("aten::sub", {{"self", b.integer()}, {"other", h}}, {rest});
  b.born(b.op("aten::log", {{"self", rest}}, {b.tensor({-kInf, -0.7})}));
  const Finding f = b.explained();
  EXPECT_EQ(f.cause_class, "log-of-zero");
  EXPECT_NE(f.fix_text.find("with_logits"), std::string::npos) << f.fix_text;
}

TEST(LogOfZero, SilentOnLogThatIsFinite) {
  B b;
  b.born(b.op("aten::log", {{"self", b.tensor({1, 0.5})}}, {b.tensor({0, -0.7})}));
  EXPECT_FALSE(b.speaks("log-of-zero"));
}

TEST(LogOfZero, FirstLinkOfAProductInBackward) {  // p * log(p), hidden in forward by nan_to_num
  B b;
  const auto p = b.tensor({0, 1}), l = b.tensor({-kInf, 0});
  b.op("aten::log", {{"self", p}}, {l});
  const auto mul = b.op("aten::mul", {{"self", p}, {"other", l}}, {b.tensor({kNaN, 0})});
  const auto select = b.op("aten::nan_to_num", {}, {b.tensor({0, 0})});
  b.begin_node("MulBackward0", mul);
  auto& birth = b.born(b.op("aten::mul", {{"self", b.tensor({0, 1})}, {"other", l}}, {b.tensor({kNaN, 0})}));
  birth.absorbed_by = select;
  const Finding f = b.explained();
  EXPECT_EQ(f.cause_class, "log-of-zero");
  EXPECT_EQ(f.fix_line, 1);
  EXPECT_NE(f.text.find("aten::nan_to_num at model.py:3 hides it"), std::string::npos) << f.text;
}

TEST(LogOfZero, IsFoundFromBackwardAlone) {
  B b;
  b.begin_node("LogBackward0", record::kNone);
  b.born(b.op("aten::div", {{"self", b.tensor({1, 1})}, {"other", b.tensor({0, 1})}}, {b.tensor({kInf, 1})}));
  EXPECT_EQ(b.explained().cause_class, "log-of-zero");
  EXPECT_FALSE(b.speaks("domain-edge"));
}

TEST(Underflow, ClampBoundThatRoundsToZero) {
  for (const double bound : {1e-46, 0.0}) {
    B b;
    const auto norm = b.tensor({0, 2}), clamped = b.tensor({0, 2});
    b.op("aten::clamp", {{"self", norm}}, {clamped}, {B::scalar("min", bound)});
    b.born(b.op("aten::div", {{"self", b.tensor({0, 2})}, {"other", clamped}}, {b.tensor({kNaN, 1})}));
    const Finding f = b.explained();
    EXPECT_EQ(f.cause_class, bound > 0 ? "underflow" : "division-by-zero");
    EXPECT_EQ(f.text.find("the epsilon 1e-46 is lost") != std::string::npos, bound > 0) << f.text;
    EXPECT_EQ(f.edits.front().kind, replay::Edit::Kind::kClamp);  // an epsilon that the format can hold
  }
}

TEST(Underflow, DivisorThatRoundsToZero) {
  for (const char* op : {"aten::softplus", "aten::sigmoid", "aten::_softmax", "aten::pow"}) {
    B b;
    const auto small = b.tensor({1, 0}), ratio = b.tensor({1, kInf});
    b.op(op, {{"self", b.tensor({1, -200})}}, {small});
    b.born(b.op("aten::div", {{"self", b.tensor({1, 1})}, {"other", small}}, {ratio}));
    EXPECT_EQ(b.explained().cause_class, "underflow") << op;
  }
}

TEST(Underflow, NotOfAZeroThatIsExact) {
  for (const char* op : {"aten::relu", "aten::hardsigmoid"}) {
    B b;
    const auto zero = b.tensor({1, 0});
    b.op(op, {{"self", b.tensor({1, -5})}}, {zero});
    b.born(b.op("aten::div", {{"self", b.tensor({1, 1})}, {"other", zero}}, {b.tensor({1, kInf})}));
    EXPECT_EQ(b.explained().cause_class, "division-by-zero") << op;
  }
}

TEST(ImpossibleEvent, MaskedLogProbabilityInAnAverage) {
  B b;
  const auto masked = b.tensor({1, -kInf}), lp = b.tensor({0, -kInf});
  b.op("aten::masked_fill", {{"self", b.tensor({1, 2})}}, {masked}, {B::scalar("value", -kInf)});
  b.op("aten::_log_softmax", {{"self", masked}}, {lp});
  b.born(b.op("aten::sum", {{"self", lp}}, {b.tensor({-kInf})}));
  EXPECT_EQ(b.explained().cause_class, "log-of-zero");
  B twin;  // a mask that is summed without any probability
  const auto mask = twin.tensor({1, -kInf});
  twin.op("aten::masked_fill", {{"self", twin.tensor({1, 2})}}, {mask}, {B::scalar("value", -kInf)});
  twin.born(twin.op("aten::sum", {{"self", mask}}, {twin.tensor({-kInf})}));
  EXPECT_FALSE(twin.speaks("impossible-event"));
}

TEST(LogOfNegative, AndLogdetButNotLogOfZero) {
  B b;
  b.born(b.op("aten::log", {{"self", b.tensor({-3, 1})}}, {b.tensor({kNaN, 0})}));
  EXPECT_EQ(b.explained().cause_class, "log-of-negative");
  B det;
  const auto outer = det.op("aten::logdet", {{"self", det.tensor({1, 2})}}, {det.tensor({kNaN})});
  const auto where =
      det.op("aten::where", {{"self", det.number(kNaN)}, {"other", det.tensor({1})}}, {det.tensor({kNaN})});
  det.trace.ops[where].parent = outer;
  std::swap(det.trace.ops[where].end_order, det.trace.ops[outer].end_order);
  det.born(where);
  EXPECT_EQ(det.explained().cause_class, "log-of-negative");
  // The determinant of a matrix of entries up to 2 is -exp(-60), or about -1.
  for (const auto& [logabsdet, cause] : {std::pair{-60.0, "degenerate-linalg"}, std::pair{0.1, "log-of-negative"}}) {
    B part;
    auto matrix = part.tensor({1, 2, 2, 1});
    matrix.shape = {2, 2}, matrix.strides = {2, 1};
    const auto whole = part.op("aten::logdet", {{"self", matrix}}, {part.tensor({kNaN})});
    const auto slogdet =
        part.op("aten::_linalg_slogdet", {{"A", matrix}}, {part.number(-1), part.tensor({float(logabsdet)})});
    const auto chosen =
        part.op("aten::where", {{"self", part.number(kNaN)}, {"other", part.tensor({1})}}, {part.tensor({kNaN})});
    part.trace.ops[slogdet].parent = part.trace.ops[chosen].parent = whole;
    part.trace.ops[whole].end_order = part.trace.ops[chosen].end_order + 1;
    part.born(chosen);
    EXPECT_EQ(part.explained().cause_class, cause);
  }
  B twin;
  twin.born(twin.op("aten::log", {{"self", twin.tensor({0, 1})}}, {twin.tensor({-kInf, 0})}));
  EXPECT_FALSE(twin.speaks("log-of-negative"));
}

TEST(Underflow, LikelihoodLoggedAndKernelDivided) {
  B b;
  const auto n = b.tensor({0, 0}), likelihood = b.tensor({0});
  b.op("aten::exp", {{"self", b.tensor({-20000, -400})}}, {n});
  b.op("aten::sum", {{"self", n}}, {likelihood});
  b.born(b.op("aten::log", {{"self", likelihood}}, {b.tensor({-kInf})}));
  EXPECT_EQ(b.explained().cause_class, "underflow");
  EXPECT_NE(b.explained().fix_text.find("logsumexp"), std::string::npos);
  B inverse;  // log(exp(x))
  const auto e = inverse.tensor({0, 0});
  inverse.op("aten::exp", {{"self", inverse.tensor({-20000, -400})}}, {e});
  inverse.born(inverse.op("aten::log", {{"self", e}}, {inverse.tensor({-kInf, -kInf})}));
  EXPECT_EQ(inverse.explained().fix_text.find("the log of an exponential is its exponent: remove both"), 0u)
      << inverse.explained().fix_text;
  B kernel;
  const auto k = kernel.tensor({1, 0}), ku = kernel.tensor({1, 0});
  kernel.op("aten::exp", {{"self", kernel.tensor({0, -400})}}, {k});
  kernel.op("aten::mv", {{"self", k}, {"vec", kernel.tensor({1, 1})}}, {ku});
  kernel.born(kernel.op("aten::div", {{"self", kernel.tensor({1, 1})}, {"other", ku}}, {kernel.tensor({1, kInf})}));
  EXPECT_EQ(kernel.explained().cause_class, "underflow");
  // A floor first: another number in the place of what was lost turns a large quotient into a small one.
  ASSERT_FALSE(kernel.explained().edits.empty());
  EXPECT_TRUE(kernel.explained().edits.front().text.starts_with("other clamped at"))
      << kernel.explained().edits.front().text;
}

TEST(Underflow, RootOfAnUnderflowedVarianceInBackward) {
  B b;
  const auto v = b.tensor({0, 1}), s = b.tensor({0, 1}), twice = b.tensor({0, 2});
  b.op("aten::exp", {{"self", b.tensor({-110, 0})}}, {v});
  const auto sqrt = b.op("aten::sqrt", {{"self", v}}, {s});
  b.begin_node("SqrtBackward0", sqrt);
  b.op("aten::mul", {{"self", s}}, {twice}, {B::scalar("other", 2)});
  b.born(b.op("aten::div", {{"self", b.tensor({1, 1})}, {"other", twice}}, {b.tensor({kInf, 0.5})}));
  EXPECT_EQ(b.explained().cause_class, "underflow");
}

TEST(Underflow, SilentOnAZeroThatWasGiven) {
  B b;
  b.born(b.op("aten::div", {{"self", b.tensor({1})}, {"other", b.tensor({0})}}, {b.tensor({kInf})}));
  EXPECT_FALSE(b.speaks("underflow"));
}

TEST(EmptyMean, IgnoredTargetsAndEmptyTensors) {
  B b;
  b.born(b.op("aten::nll_loss_forward", {{"self", b.tensor({-1, -2})}}, {b.tensor({kNaN}), b.tensor({0})}));
  EXPECT_EQ(b.explained().cause_class, "division-by-zero");
  EXPECT_TRUE(b.speaks("empty-mean"));
  B mean;
  mean.born(mean.op("aten::mean", {{"self", mean.tensor({})}}, {mean.tensor({kNaN})}));
  EXPECT_EQ(mean.explained().cause_class, "division-by-zero");
  B twin;
  twin.born(
      twin.op("aten::nll_loss_forward", {{"self", twin.tensor({-kInf, -2})}}, {twin.tensor({kInf}), twin.tensor({2})}));
  EXPECT_FALSE(twin.speaks("empty-mean"));
}

TEST(VarianceOfOne, StdAndTheHandWrittenCorrection) {
  B b;
  b.born(b.op("aten::std", {{"self", b.tensor({3})}}, {b.tensor({kNaN})}, {B::scalar("correction", 1)}));
  EXPECT_EQ(b.explained().cause_class, "variance-of-one");
  B hand;
  const auto n = hand.tensor({1}), less = hand.tensor({0});
  hand.op("aten::sub", {{"self", n}, {"other", hand.integer()}}, {less});
  hand.born(hand.op("aten::reciprocal", {{"self", less}}, {hand.tensor({kInf})}));
  EXPECT_EQ(hand.explained().cause_class, "variance-of-one");
  B twin;  // many elements, too large
  twin.born(twin.op("aten::var", {{"self", twin.tensor({1e30, -1e30})}}, {twin.tensor({kInf})}));
  EXPECT_FALSE(twin.speaks("variance-of-one"));
  EXPECT_EQ(twin.explained().cause_class, "overflow");
}

// The biased form is 0: where that is divided by, 1 in its place is what was tried with success.
TEST(VarianceOfOne, AdviceIsOfTheEditThatWasVerified) {
  B b;
  b.born(b.op("aten::std", {{"self", b.tensor({3})}}, {b.tensor({kNaN})}, {B::scalar("correction", 1)}));
  const Finding found = b.explained();
  ASSERT_EQ(found.edits.size(), 2U);
  EXPECT_EQ(found.edits[0].advice, "");
  EXPECT_TRUE(found.fix_text.starts_with("use the biased form (correction=0)")) << found.fix_text;
  EXPECT_EQ(found.edits[1].to, 1);
  EXPECT_TRUE(found.edits[1].advice.starts_with("use 1 in its place")) << found.edits[1].advice;
  B pooled;  // of two by a correction of two: not the biased form of one element
  pooled.born(
      pooled.op("aten::var", {{"self", pooled.tensor({3, 4})}}, {pooled.tensor({kNaN})}, {B::scalar("correction", 2)}));
  const Finding other = pooled.explained();
  ASSERT_EQ(other.edits.size(), 2U);
  EXPECT_EQ(other.edits[1].advice, "");
}

TEST(NegativeDomain, CancellationIsNamedAndZeroIsInside) {
  B b;
  const auto v = b.tensor({-0.01, 0.02});
  b.op("aten::sub", {{"self", b.tensor({1e6, 1e6})}, {"other", b.tensor({1e6, 1e6})}}, {v});
  b.born(b.op("aten::sqrt", {{"self", v}}, {b.tensor({kNaN, 0.14})}));
  const Finding f = b.explained();
  EXPECT_EQ(f.cause_class, "negative-domain");
  EXPECT_NE(f.text.find("cancellation"), std::string::npos) << f.text;
  B power;
  power.born(
      power.op("aten::pow", {{"self", power.tensor({-2})}}, {power.tensor({kNaN})}, {B::scalar("exponent", 0.5)}));
  EXPECT_EQ(power.explained().cause_class, "negative-domain");
  B powers;
  powers.born(powers.op("aten::pow", {{"self", powers.tensor({-2, 3})}, {"exponent", powers.tensor({0.5, 2})}},
                        {powers.tensor({kNaN, 9})}));
  EXPECT_EQ(powers.explained().cause_class, "negative-domain");
  B twin;
  twin.born(twin.op("aten::sqrt", {{"self", twin.tensor({0, 1})}}, {twin.tensor({0, 1})}));
  EXPECT_FALSE(twin.speaks("negative-domain"));
}

TEST(DomainEdge, RootAndPowerAtZeroInBackward) {
  B b;
  const auto s = b.tensor({0, 1}), twice = b.tensor({0, 2});
  const auto sqrt = b.op("aten::sqrt", {{"self", b.tensor({0, 1})}}, {s});
  b.begin_node("SqrtBackward0", sqrt);
  b.op("aten::mul", {{"self", s}}, {twice}, {B::scalar("other", 2)});
  b.born(b.op("aten::div", {{"self", b.tensor({0, 1})}, {"other", twice}}, {b.tensor({kNaN, 0.5})}));
  TableLab lab;
  lab.answers = {{"replace", {0, 0.5}}, {"float64", {kNaN, 0.5}}};
  b.lab = &lab;
  const Finding f = b.explained();
  EXPECT_EQ(f.cause_class, "domain-edge");
  EXPECT_EQ(f.confidence, "proven");
  EXPECT_EQ(f.fix_line, 1);
  B power;
  const auto p = power.tensor({0, 1});
  const auto pow = power.op("aten::pow", {{"self", p}}, {power.tensor({0, 1})}, {B::scalar("exponent", 0.5)});
  power.begin_node("PowBackward0", pow);
  power.born(power.op("aten::pow", {{"self", p}}, {power.tensor({kInf, 1})}, {B::scalar("exponent", -0.5)}));
  EXPECT_EQ(power.explained().cause_class, "domain-edge");
}

TEST(DomainEdge, PoleInForwardButNoOverflowedGradient) {
  B b;
  b.born(b.op("aten::atanh", {{"self", b.tensor({1, 0})}}, {b.tensor({kInf, 0})}));
  EXPECT_EQ(b.explained().cause_class, "domain-edge");
  B twin;
  const auto mm = twin.op("aten::mm", {{"self", twin.tensor({1, 2})}}, {twin.tensor({1, 2})});
  twin.begin_node("MmBackward0", mm);
  twin.born(twin.op("aten::mm", {{"self", twin.tensor({1e30})}, {"mat2", twin.tensor({1e30})}}, {twin.tensor({kInf})}));
  EXPECT_FALSE(twin.speaks("domain-edge"));
  EXPECT_EQ(twin.explained().cause_class, "overflow");
}

TEST(DomainEdge, GammaAtANegativeWholeNumber) {
  for (const double value : {kInf, kNaN}) {  // lgamma's and digamma's
    B b;
    b.born(b.op(std::isnan(value) ? "aten::digamma" : "aten::lgamma", {{"self", b.tensor({-2, 3})}},
                {b.tensor({value, 1})}));
    TableLab lab;
    lab.answers = {{"clamp", {1, 1}}, {"float64", {value, 1}}};
    b.lab = &lab;
    const Finding f = b.explained();
    EXPECT_EQ(f.cause_class, "domain-edge");
    EXPECT_EQ(f.confidence, "proven");
    EXPECT_NE(f.text.find("negative whole number"), std::string::npos) << f.text;
  }
  B large;
  large.born(large.op("aten::lgamma", {{"self", large.tensor({1e38, -2.5})}}, {large.tensor({kInf, 1})}));
  EXPECT_FALSE(large.speaks("domain-edge"));
}

TEST(ExpOverflow, ForwardAndHiddenByWhere) {
  B b;
  b.born(b.op("aten::exp", {{"self", b.tensor({120, 0})}}, {b.tensor({kInf, 1})}));
  TableLab lab;
  lab.answers = {{"clamp", {1e38, 1}}, {"float64", {1e52, 1}}};
  b.lab = &lab;
  EXPECT_EQ(b.explained().cause_class, "exp-overflow");
  EXPECT_EQ(b.explained().confidence, "proven");
  B hidden;
  const auto e = hidden.tensor({kInf, 1});
  const auto exp = hidden.op("aten::exp", {{"self", hidden.tensor({120, 0})}}, {e});
  const auto where = hidden.op("aten::where", {}, {hidden.tensor({120, 0})});
  hidden.begin_node("ExpBackward0", exp);
  hidden.born(hidden.op("aten::mul", {{"self", hidden.tensor({0, 1})}, {"other", e}}, {hidden.tensor({kNaN, 1})}))
      .absorbed_by = where;
  const Finding f = hidden.explained();
  EXPECT_EQ(f.cause_class, "exp-overflow");
  EXPECT_NE(f.fix_text.find("double where"), std::string::npos);
  B twin;  // Inf in by intent, Inf out: not an overflow
  twin.born(twin.op("aten::exp", {{"self", twin.tensor({kInf})}}, {twin.tensor({kInf})}));
  EXPECT_FALSE(twin.speaks("exp-overflow"));
}

TEST(Overflow, ProductsButNotSmallOperands) {
  B b;
  b.born(b.op("aten::mm", {{"self", b.tensor({1e25, 1})}, {"mat2", b.tensor({1e20, 1})}}, {b.tensor({kInf})}));
  EXPECT_EQ(b.explained().cause_class, "overflow");
  B twin;
  twin.born(twin.op("aten::mul", {{"self", twin.tensor({2})}, {"other", twin.tensor({3})}}, {twin.tensor({kInf})}));
  EXPECT_FALSE(twin.speaks("overflow"));
}

TEST(LearningRate, NotANumberAndExplosion) {
  B nan;
  nan.phase = Phase::kOptimizer;
  nan.history.lr_now = kNaN;
  nan.born(nan.op("aten::add_", {{"self", nan.tensor({1})}}, {nan.tensor({kNaN})}, {B::scalar("alpha", kNaN)}));
  EXPECT_EQ(nan.explained().cause_class, "learning-rate");
  B b;
  b.history.loss = {9, 5e3, 3e12};
  b.history.param_absmax = {1, 50, 4e5};
  b.history.lr_now = 0.5;
  b.born(b.op("aten::mm", {{"self", b.tensor({1e25})}, {"mat2", b.tensor({1e20})}}, {b.tensor({kInf})}));
  EXPECT_EQ(b.explained().cause_class, "learning-rate");
  const auto reported = [&b] { return b.explained().text; };
  EXPECT_NE(reported().find("loss 9 to 3e+12 over the last 2 steps, weights 1 to 400000 at a learning rate of 0.5; "),
            std::string::npos);
  b.history.learning_rate = {.1, .3, .4};  // the steps that were taken; 0.5 is set, and has moved nothing
  EXPECT_NE(reported().find("over the last 2 steps, weights 1 to 400000 at learning rates from 0.3 to 0.4; "),
            std::string::npos);
  b.history.lr_least = 0.01;  // of another group
  EXPECT_NE(reported().find(" at learning rates from 0.01 to 0.5; "), std::string::npos);
  b.history.param_absmax = {1, 1, 1};  // the loss grew, the weights did not: the data did
  EXPECT_FALSE(b.speaks("learning-rate"));
}

TEST(LearningRate, OneStepOutOfProportionIsNoRate) {
  const auto cause_of = [](std::vector<double> losses, std::vector<double> gradients, std::vector<double> rates) {
    B b;
    b.history.loss = std::move(losses);
    b.history.grad_absmax = std::move(gradients);
    b.history.learning_rate = std::move(rates);
    b.history.param_absmax = {1, 4e12};
    b.born(b.op("aten::mm", {{"self", b.tensor({1e25})}, {"mat2", b.tensor({1e20})}}, {b.tensor({kInf})}));
    return b.explained().cause_class;
  };
  const std::vector<double> outlier = {3, 2, 2, 1, 9e12}, usual = {2, 2, 1, 1, 4e13}, rates = {.1, .1, .1, .1, .1};
  EXPECT_EQ(cause_of(outlier, usual, rates), "exploding-gradient");
  EXPECT_EQ(cause_of({3, 2, 2, 1, 9e12, 1e20}, {2, 2, 1, 1, 4e13, 1e21}, {}),
            "exploding-gradient");                                             // and what became of its update
  EXPECT_EQ(cause_of(outlier, {2, 2, 1, 9e5, 4e13}, rates), "learning-rate");  // an update was large before
  EXPECT_EQ(cause_of(outlier, usual, {.1, .1, .1, 5, 5}), "learning-rate");    // or the rate rose
  EXPECT_EQ(cause_of({3, 40, 900, 2e4, 9e12}, {2, 50, 800, 9e4, 4e13}, rates), "learning-rate");
  // Gradients alone: what backward read had been overwritten, say.
  EXPECT_EQ(cause_of({3, 2, 2, 1}, {2, 2, 1, 4e13}, {.1, .1, .1, .1}), "exploding-gradient");
  EXPECT_EQ(cause_of({3, 2, 2, 900}, {2, 2, 1, 4e13}, {.1, .1, .1, .1}), "learning-rate");
  EXPECT_EQ(cause_of({3, 2, 2, 1}, {2, 2, 1, 4e3}, {.1, .1, .1, .1}), "learning-rate");
}

TEST(LearningRate, ScheduleJumpAndWhatGrewSince) {
  const auto cause_of = [](std::vector<double> rates, std::vector<double> losses) {
    B b;
    b.history.learning_rate = std::move(rates);
    b.history.loss = std::move(losses);
    b.born(b.op("aten::exp", {{"self", b.tensor({1000})}}, {b.tensor({kInf})}));
    return b.explained().cause_class;
  };
  const std::vector<double> jump = {.01, .011, .012, .013, 1.3, 1.4}, grew = {4, 5, 4, 4, 5, 60};
  EXPECT_EQ(cause_of(jump, grew), "learning-rate");
  EXPECT_EQ(cause_of(jump, {4, 5, 4, 4, 5, 6}), "exp-overflow");                 // nothing grew
  EXPECT_EQ(cause_of(jump, {4, 5, 4, 4, 60, 60}), "exp-overflow");               // it had grown with the old weights
  EXPECT_EQ(cause_of({.01, .02, .03, .04, .05, .06}, grew), "exp-overflow");     // warm-up
  EXPECT_EQ(cause_of({0, 1e-8, 1e-3, 1e-3, 1e-3, 1e-3}, grew), "exp-overflow");  // the start of one
  EXPECT_EQ(cause_of({1.3, .013, .012, .011, 1.3, 1.4}, grew), "exp-overflow");  // a restart of the schedule
  std::vector<double> long_ago = jump, calm = grew;
  long_ago.insert(long_ago.end(), 20, 1.4);
  calm.insert(calm.end(), 20, 4);
  calm.back() = 60;
  EXPECT_EQ(cause_of(long_ago, calm), "exp-overflow");
}

TEST(ExplodingGradient, GrowthOverManyOpsButNotOneFactor) {
  for (const int steps : {2, 40}) {
    B b;
    const auto forward = b.op("aten::mm", {{"self", b.tensor({0})}}, {b.tensor({0})});
    b.begin_node("MmBackward0", forward);
    auto gradient = b.tensor({1e-3});
    for (int i = 0; i < steps; ++i) {
      const auto next = b.tensor({1e-3 * std::pow(10, 40.0 * (i + 1) / steps)});
      b.op("aten::mm", {{"self", gradient}}, {next});
      gradient = next;
    }
    b.born(b.op("aten::mm", {{"self", gradient}, {"mat2", b.tensor({100})}}, {b.tensor({kInf})}));
    EXPECT_EQ(b.explained().cause_class, steps > 10 ? "exploding-gradient" : "overflow");
  }
}

TEST(ZeroTimesInfinity, IntendedInfinityOnly) {
  B b;
  const auto lp = b.tensor({0, -kInf});
  b.op("aten::masked_fill", {{"self", b.tensor({0, 0})}}, {lp}, {B::scalar("value", -kInf)});
  b.born(b.op("aten::mul", {{"self", b.tensor({1, 0})}, {"other", lp}}, {b.tensor({0, kNaN})}));
  EXPECT_EQ(b.explained().cause_class, "zero-times-infinity");
  B flag;  // a boolean zero
  flag.born(flag.op("aten::mul", {{"self", flag.tensor({0}, DType::kOther)}, {"other", flag.tensor({kInf})}},
                    {flag.tensor({kNaN})}));
  EXPECT_EQ(flag.explained().cause_class, "zero-times-infinity");
  B twin;
  twin.born(twin.op("aten::mul", {{"self", twin.tensor({kNaN})}, {"other", twin.tensor({0})}}, {twin.tensor({kNaN})}));
  EXPECT_FALSE(twin.speaks("zero-times-infinity"));
}

TEST(InfinityMinusInfinity, SignsMatter) {
  B b;
  b.born(b.op("aten::add", {{"self", b.tensor({kInf})}, {"other", b.tensor({-kInf})}}, {b.tensor({kNaN})}));
  const Finding f = b.explained();
  EXPECT_EQ(f.cause_class, "infinity-minus-infinity");
  EXPECT_NE(f.fix_text.find("large finite number"), std::string::npos) << f.fix_text;
  B twin;
  twin.born(
      twin.op("aten::add", {{"self", twin.tensor({kInf})}, {"other", twin.tensor({kInf})}}, {twin.tensor({kNaN})}));
  EXPECT_FALSE(twin.speaks("infinity-minus-infinity"));
}

}  // namespace
}  // namespace finitude::explain
