#include "locate/slice.h"

#include <gtest/gtest.h>

#include "locate/testing.h"

namespace finitude::locate {
namespace {

using record::kNone;
using record::OpId;
using record::Origin;
using record::Phase;
using testing::kClean;
using testing::kInfValue;
using testing::kMinusInfValue;
using testing::kNanValue;
using testing::Tensor;
using testing::TraceBuilder;
using testing::Values;

TEST(Slice, LogOfZeroTimesZeroIsLogBirth) {
  TraceBuilder b;
  const Tensor p = b.storage(), y = b.storage(), l = b.storage(), m = b.storage(),
               loss = b.storage(Origin::kUnknown, {1});
  const OpId log = b.unary("aten::log", p, {.min = 0, .max = 1, .zero = 1}, l, kMinusInfValue);
  const OpId mul = b.binary("aten::mul", y, kClean, l, kMinusInfValue, m, kNanValue);
  const OpId sum = b.unary("aten::sum", m, kNanValue, loss, kNanValue);
  b.sink("loss", loss, kNanValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, log);
  EXPECT_EQ(found.births[0].kind, "forward");
  EXPECT_EQ(found.births[0].path, (std::vector<OpId>{mul, sum}));
  EXPECT_TRUE(found.absorbed.empty());
}

// As index_reduce_ does with "mean": its loop adds up into its own argument, then it calls div_ on that.
TEST(Slice, KernelOwnsArgumentValuesItWritesAndRereads) {
  for (const bool comes_in : {true, false}) {
    TraceBuilder b;
    const Tensor x = b.storage(), count = b.storage(), mean = b.storage(), pooled = b.storage(), loss = b.storage();
    const OpId zeros = b.op("aten::zeros").out(pooled, kClean).end();
    const OpId div = b.binary("aten::div", x, kClean, count, kClean, mean, comes_in ? kNanValue : kClean);
    OpId reduce, inner;
    {
      auto call = b.op("aten::index_reduce_");
      call.inout(pooled, kClean).in(mean, comes_in ? kNanValue : kClean, "source");
      inner = b.op("aten::div_").inout(pooled, kNanValue).in(count, kClean, "other").out(pooled, kNanValue).end();
      call.out(pooled, kNanValue);
      reduce = call.end();
    }
    const OpId sum = b.unary("aten::sum", pooled, kNanValue, loss, kNanValue);
    b.sink("loss", loss, kNanValue);
    const Located found = locate(b.trace);
    ASSERT_EQ(found.births.size(), 1u);
    EXPECT_EQ(found.births[0].op, comes_in ? div : reduce);
    EXPECT_EQ(found.births[0].kind, "forward");
    EXPECT_EQ(found.births[0].path.back(), sum);
    (void)zeros, (void)inner;
  }
}

// As abs does with complex numbers: its kernel resizes memory that was handed out without a byte, and writes it.
TEST(Slice, WriteOfZeroBytesIsNoProgramData) {
  TraceBuilder b;
  const Tensor x = b.storage(), count = b.storage(), z = b.storage(), scratch = b.storage(), length = b.storage();
  const OpId div = b.binary("aten::div", x, kClean, count, kClean, z, kNanValue);
  {
    auto call = b.op("aten::abs");
    call.in(z, kNanValue, "self");
    b.op("aten::empty").out(scratch.as({0}), kClean).end();
    b.unary("aten::clone", scratch, kNanValue, length, kNanValue);
    call.out(length, kNanValue);
    call.end();
  }
  b.sink("loss", length, kNanValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, div);
}

TEST(Slice, EarlierBirthIsFirstUnrelatedOneIsAbsorbed) {
  TraceBuilder b;
  const Tensor x = b.storage(), u = b.storage(), a = b.storage(), c = b.storage(), loss = b.storage();
  const OpId unrelated = b.unary("aten::sqrt", x, kClean, u, kNanValue);
  const OpId first = b.unary("aten::log", x, kClean, a, kMinusInfValue);
  const OpId second = b.unary("aten::exp", x, kClean, c, kInfValue);
  b.binary("aten::add", c, kInfValue, a, kMinusInfValue, loss, kNanValue);
  b.sink("loss", loss, kNanValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 2u);
  EXPECT_EQ(found.births[0].op, first);
  EXPECT_EQ(found.births[1].op, second);
  ASSERT_EQ(found.absorbed.size(), 1u);
  EXPECT_EQ(found.absorbed[0].op, unrelated);
}

TEST(Slice, LossBirthPrecedesEarlierGradientBirths) {
  TraceBuilder b;
  const Tensor x = b.storage(), g = b.storage(), loss = b.storage();
  const OpId early = b.unary("aten::rsqrt", x, kClean, g, kInfValue);
  const OpId late = b.unary("aten::log", x, kClean, loss, kNanValue);
  b.sink("gradient", g, kInfValue);
  b.sink("loss", loss, kNanValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 2u);
  EXPECT_EQ(found.births[0].op, late);
  EXPECT_EQ(found.births[0].sink, 1u);
  EXPECT_EQ(found.births[1].op, early);
  EXPECT_EQ(found.births[1].sink, 0u);
}

// where(h > 0, h, exp(h)): the forward Inf is dropped, the backward multiplies it by zero.
TEST(Slice, ForwardValueHiddenByWhereIsBackwardBirth) {
  TraceBuilder b;
  const Tensor h = b.storage(), c = b.storage(), e = b.storage(), w = b.storage(), loss = b.storage();
  const OpId exp = b.unary("aten::exp", h, kClean, e, kInfValue);
  const OpId where =
      b.op("aten::where").in(c, kClean, "condition").in(h, kClean).in(e, kInfValue, "other").out(w).end();
  b.unary("aten::sum", w, kClean, loss, kClean);
  const Tensor g = b.storage(), gm = b.storage(), gw = b.storage();
  OpId node, mul, mm;
  {
    auto call = b.node("ExpBackward0");
    node = call.in(g, kClean, "grad_output").forward(exp).id();
    mul = b.binary("aten::mul", g, {.min = 0, .max = 0, .zero = 4}, e, kInfValue, gm, kNanValue);
  }
  {
    auto call = b.node("MmBackward0");
    call.in(gm, kNanValue, "grad_output");
    mm = b.unary("aten::mm", gm, kNanValue, gw, kNanValue);
  }
  b.sink("gradient", gw, kNanValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 2u);
  const Birth& birth = found.births[0];
  EXPECT_EQ(birth.kind, "backward");
  EXPECT_EQ(birth.phase, Phase::kBackward);
  EXPECT_EQ(birth.op, mul);
  EXPECT_EQ(birth.node, node);
  EXPECT_EQ(birth.forward, exp);
  EXPECT_EQ(birth.absorbed_by, where);
  EXPECT_EQ(birth.path, (std::vector<OpId>{exp, mm}));
  EXPECT_EQ(found.births[1].op, exp);
  EXPECT_EQ(found.births[1].kind, "forward");
  EXPECT_TRUE(found.absorbed.empty());
}

// mean(h^2) overflows, its reciprocal root is 0. An infinity that where() skips is no such thing.
TEST(Slice, ArithmeticOverflowsAreSeparateFromGuardedOnes) {
  TraceBuilder b;
  const Tensor h = b.storage(), p = b.storage(), r = b.storage(), e = b.storage(), w = b.storage();
  const OpId pow = b.unary("aten::pow", h, kClean, p, kInfValue);
  b.unary("aten::rsqrt", p, kInfValue, r, {.min = 0, .max = 0, .zero = 4});
  b.unary("aten::exp", h, kClean, e, kInfValue);
  b.binary("aten::where", h, kClean, e, kInfValue, w, {.min = 0, .max = 0, .zero = 4});
  b.sink("loss", r, kClean);
  const Located found = locate(b.trace);
  EXPECT_TRUE(found.births.empty());
  EXPECT_EQ(found.absorbed.size(), 2u);
  const std::vector<Birth> swallowed = swallowed_overflows(b.trace, found);
  ASSERT_EQ(swallowed.size(), 1u);
  EXPECT_EQ(swallowed[0].op, pow);
}

// Further down the gradient is bad already; other forward values that were hidden there add nothing.
TEST(Slice, BadGradientIsFollowedUpstreamOnly) {
  TraceBuilder b;
  const Tensor x = b.storage(), a = b.storage(), c = b.storage(), d = b.storage();
  const OpId first = b.unary("aten::exp", x, kClean, a, kInfValue);
  const OpId second = b.unary("aten::reciprocal", x, kClean, c, kInfValue);
  b.binary("aten::where", a, kInfValue, c, kInfValue, d, kClean);
  const Tensor g = b.storage(), g1 = b.storage(), g2 = b.storage();
  OpId mul;
  {
    auto node = b.node("ReciprocalBackward0");
    mul = b.binary("aten::mul", g, kClean, c, kInfValue, g1, kNanValue);
  }
  {
    auto node = b.node("ExpBackward0");
    b.binary("aten::mul", g1, kNanValue, a, kInfValue, g2, kNanValue);
  }
  b.sink("gradient", g2, kNanValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 2u);
  EXPECT_EQ(found.births[0].op, mul);
  EXPECT_EQ(found.births[1].op, second);
  ASSERT_EQ(found.absorbed.size(), 1u);
  EXPECT_EQ(found.absorbed[0].op, first);
}

TEST(Slice, ForwardBirthOfBadLossExplainsGradients) {
  TraceBuilder b;
  const Tensor x = b.storage(), l = b.storage(), g = b.storage(), gx = b.storage();
  const OpId log = b.unary("aten::log", x, kClean, l, kNanValue);
  b.sink("loss", l, kNanValue);
  {
    auto call = b.node("MulBackward0");
    b.binary("aten::mul", g, kClean, l, kNanValue, gx, kNanValue);
  }
  b.sink("gradient", gx, kNanValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, log);
}

TEST(Slice, BackwardBirthFromFiniteValues) {
  TraceBuilder b;
  const Tensor x = b.storage(), s = b.storage(), g = b.storage(), gx = b.storage();
  const OpId sqrt = b.unary("aten::sqrt", x, {.min = 0, .max = 1, .zero = 1}, s, {.min = 0, .max = 1, .zero = 1});
  OpId node, div;
  {
    auto call = b.node("SqrtBackward0");
    node = call.in(g, kClean, "grad_output").forward(sqrt).id();
    div = b.binary("aten::div", g, kClean, s, {.min = 0, .max = 1, .zero = 1}, gx, kInfValue);
  }
  b.sink("gradient", gx, kInfValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, div);
  EXPECT_EQ(found.births[0].node, node);
  EXPECT_EQ(found.births[0].forward, sqrt);
  EXPECT_EQ(found.births[0].kind, "backward");
}

// NaN labels: the loss selects them away, the backward multiplies by zero. What came in bad is the cause.
TEST(Slice, BatchMaskedTooLateIsADataBirth) {
  TraceBuilder b;
  const Tensor y = b.storage(Origin::kBatch), x = b.storage(), d = b.storage(), w = b.storage();
  const OpId sub = b.binary("aten::sub", x, kClean, y, kNanValue, d, kNanValue);
  const OpId where = b.op("aten::where").in(d, kNanValue).out(w).end();
  const Tensor g = b.storage(), gd = b.storage();
  OpId mul;
  {
    auto call = b.node("PowBackward0");
    mul = b.binary("aten::mul", g, kClean, d, kNanValue, gd, kNanValue);
  }
  b.sink("gradient", gd, kNanValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 2u);
  EXPECT_EQ(found.births[0].kind, "data");
  EXPECT_EQ(found.births[0].storage, y.storage);
  EXPECT_EQ(found.births[0].first_reader, sub);
  EXPECT_EQ(found.births[0].absorbed_by, where);
  EXPECT_EQ(found.births[1].op, mul);
}

TEST(Slice, GradientAccumulationOverMicroBatches) {
  TraceBuilder b;
  const Tensor x = b.storage(), acc = b.storage(), g2 = b.storage();
  OpId div;
  {
    auto call = b.node("DivBackward0");
    div = b.unary("aten::div", x, kClean, acc, kNanValue);
  }
  {
    auto call = b.node("DivBackward0");
    b.unary("aten::div", x, kClean, g2, kClean);
  }
  {
    auto call = b.node("torch::autograd::AccumulateGrad");
    b.op("aten::add_").inout(acc, kNanValue).in(g2, kClean, "other").out(acc, kNanValue);
  }
  b.sink("gradient", acc, kNanValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, div);
  EXPECT_EQ(found.births[0].path.size(), 1u);
}

TEST(Slice, SinkSeesOnlyEarlierWrites) {
  TraceBuilder b;
  const Tensor x = b.storage(), g = b.storage();
  const OpId born = b.unary("aten::log", x, kClean, g, kNanValue);
  b.sink("gradient", g, kNanValue);
  b.op("aten::mul_").inout(g, kNanValue).out(g, kNanValue);
  b.op("aten::zero_").inout(g, kNanValue).out(g, kClean);
  const OpId later = b.op("aten::sqrt_").inout(g, kClean).out(g, kNanValue).end();
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, born);
  EXPECT_TRUE(found.births[0].path.empty());
  ASSERT_EQ(found.absorbed.size(), 1u);
  EXPECT_EQ(found.absorbed[0].op, later);
}

TEST(Slice, OptimizerBirthFromANanLearningRate) {
  TraceBuilder b;
  const Tensor p = b.storage(Origin::kParameter), g = b.storage(Origin::kGradient);
  b.phase = Phase::kOptimizer;
  const OpId add =
      b.op("aten::add_").inout(p, kClean).in(g, kClean, "other").number(NAN, "alpha").out(p, kNanValue).end();
  b.sink("parameter", p, kNanValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, add);
  EXPECT_EQ(found.births[0].kind, "optimizer");
}

TEST(Slice, InfiniteOptimizerCoefficientIsNoMask) {
  TraceBuilder b;
  const Tensor p = b.storage(Origin::kParameter), g = b.storage(Origin::kGradient), u = b.storage();
  b.phase = Phase::kOptimizer;
  const OpId mul = b.op("aten::mul").in(g).number(INFINITY, "other").out(u, kInfValue).end();
  b.op("aten::add_").inout(p, kClean).in(u, kInfValue, "other").out(p, kInfValue);
  b.sink("parameter", p, kInfValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, mul);
}

TEST(Slice, StateDataAndCarriedGradientBirths) {
  for (const auto& [origin, kind] : {std::pair(Origin::kParameter, "state"), std::pair(Origin::kBuffer, "state"),
                                     std::pair(Origin::kOptimizerState, "state"), std::pair(Origin::kBatch, "data"),
                                     std::pair(Origin::kUnknown, "data"), std::pair(Origin::kGradient, "backward")}) {
    TraceBuilder b;
    const Tensor x = b.storage(origin), t = x, y = b.storage();
    b.op("aten::t").in(x, kNanValue).out(t, kNanValue).view();
    OpId inner;
    {
      auto linear = b.op("aten::linear");
      linear.in(t, kNanValue, "weight");
      inner = b.op("aten::addmm").in(t, kNanValue, "mat2").out(y, kNanValue).end();
      linear.out(y, kNanValue);
    }
    b.sink("loss", y, kNanValue);
    const Located found = locate(b.trace);
    ASSERT_EQ(found.births.size(), 1u) << kind;
    EXPECT_EQ(found.births[0].kind, kind);
    EXPECT_EQ(found.births[0].op, kNone);
    EXPECT_EQ(found.births[0].storage, x.storage);
    EXPECT_EQ(found.births[0].first_reader, inner);
    EXPECT_EQ(found.births[0].path, (std::vector<OpId>{inner}));
  }
}

TEST(Slice, WhatTheLoaderComputedIsData) {
  TraceBuilder b;
  const Tensor raw = b.storage(), x = b.storage(Origin::kBatch), loss = b.storage();
  b.phase = Phase::kData;
  const OpId div = b.unary("aten::div", raw, kClean, x, kNanValue);
  b.phase = Phase::kForward;
  b.unary("aten::mean", x, kNanValue, loss, kNanValue);
  b.sink("loss", loss, kNanValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, div);
  EXPECT_EQ(found.births[0].kind, "data");
}

TEST(Slice, RowOfTheFirstBadElement) {
  TraceBuilder b;
  const Tensor x = b.storage(Origin::kUnknown, {8, 3}), y = b.storage(Origin::kUnknown, {8, 3});
  auto call = b.op("aten::log");
  call.in(x).out(y, kNanValue).end();
  call.op().outputs[0].first_bad = 13;
  b.sink("loss", y, kNanValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].rows, (std::vector<std::int64_t>{4}));
}

TEST(Slice, LongPathsAreCutInTheMiddle) {
  TraceBuilder b;
  Tensor x = b.storage(), y = b.storage();
  const OpId born = b.unary("aten::log", x, kClean, y, kNanValue);
  OpId last = born;
  for (int i = 0; i < 500; ++i) {
    x = y;
    y = b.storage();
    last = b.unary("aten::neg", x, kNanValue, y, kNanValue);
  }
  b.sink("loss", y, kNanValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, born);
  EXPECT_EQ(found.births[0].path.size(), 64u);
  EXPECT_EQ(found.births[0].path.front(), born + 1);
  EXPECT_EQ(found.births[0].path.back(), last);
}

// f = log(x); h = linear(f); the bad rows of h are masked, and linear's weight gradient reads the saved -Inf.
TEST(Slice, HiddenSavedForwardValueIsBornAtMaker) {
  TraceBuilder b;
  const Tensor x = b.storage(), f = b.storage(), h = b.storage(), m = b.storage(), g = b.storage(), gw = b.storage();
  const auto log = b.op("aten::log").in(x, kClean).out(f, kMinusInfValue).end();
  const auto addmm = b.op("aten::addmm").in(f, kMinusInfValue, "mat1").out(h, kNanValue).end();
  b.op("aten::masked_fill").in(h, kNanValue).out(m, kClean).end();
  {
    auto node = b.node("AddmmBackward0");
    node.in(g, kClean, "grad_output").forward(addmm);
    b.op("aten::mm").in(g, kClean).in(f, kMinusInfValue, "mat2").out(gw, kNanValue).end();
  }
  b.sink("gradient", gw, kNanValue);
  const Located found = locate(b.trace);
  ASSERT_FALSE(found.births.empty());
  EXPECT_EQ(found.births[0].op, log);
  EXPECT_EQ(found.births[0].kind, "forward");
}

TEST(Slice, AnEmptyTraceAndOddOnesGiveNothing) {
  EXPECT_TRUE(locate(record::Trace{}).births.empty());
  TraceBuilder b;
  b.sink("loss", Tensor{kNone}, kNanValue);   // no readable memory
  b.sink("loss", Tensor{12'345}, kNanValue);  // a storage that is not listed
  const Tensor x = b.storage();
  b.unary("aten::log", Tensor{77}, kClean, x, kClean);
  b.sink("loss", x, kClean);
  b.trace.ops[0].parent = 99;
  b.trace.ops[0].node = 98;
  EXPECT_TRUE(locate(b.trace).births.empty());
}

}  // namespace
}  // namespace finitude::locate
