// Intended infinities and absorbed births: what must stay silent, and the twins that must not be excused.
#include <gtest/gtest.h>

#include <string_view>

#include "locate/slice.h"
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

constexpr Values kAllMinusInf{.neg_inf = 4, .min = 0, .max = 0};

struct Masked : TraceBuilder {
  Tensor scores = storage(), masked = storage();
  Masked(Values after = kMinusInfValue) { op("aten::masked_fill").in(scores).number(-INFINITY).out(masked, after); }
};

TEST(Intent, MaskEndingInSoftmaxIsNoBirth) {
  Masked b;
  const Tensor p = b.storage(), loss = b.storage();
  b.op("aten::_softmax").in(b.masked, kMinusInfValue).out(p);
  b.op("aten::sum").in(p).out(loss);
  b.sink("loss", loss, kClean);
  const Located found = locate(b.trace);
  EXPECT_TRUE(found.births.empty());
  EXPECT_TRUE(found.absorbed.empty());
}

TEST(Intent, FullyMaskedRowIsBornInSoftmax) {
  Masked b(kAllMinusInf);
  const Tensor p = b.storage(), loss = b.storage();
  OpId inner;
  {
    auto outer = b.op("aten::softmax");
    outer.in(b.masked, kAllMinusInf);
    inner = b.op("aten::_softmax").in(b.masked, kAllMinusInf).out(p, kNanValue).end();
    outer.out(p, kNanValue);
  }
  b.op("aten::sum").in(p, kNanValue).out(loss, kNanValue);
  b.sink("loss", loss, kNanValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, inner);
}

TEST(Intent, MaskedLogProbabilityTimesZeroIsMulBirth) {
  Masked b;
  const Tensor lp = b.storage(), p = b.storage(), m = b.storage(), loss = b.storage();
  b.op("aten::_log_softmax").in(b.masked, kMinusInfValue).out(lp, kMinusInfValue);
  b.op("aten::exp").in(lp, kMinusInfValue).out(p);
  const OpId mul = b.op("aten::mul").in(p).in(lp, kMinusInfValue, "other").out(m, kNanValue).end();
  b.op("aten::sum").in(m, kNanValue).out(loss, kNanValue);
  b.sink("loss", loss, kNanValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, mul);
}

TEST(Intent, SumMixingIntendedInfinitiesIntoLossIsBirth) {
  Masked b;
  const Tensor lp = b.storage(), n = b.storage(), loss = b.storage(Origin::kUnknown, {1}),
               out = b.storage(Origin::kUnknown, {1});
  b.op("aten::_log_softmax").in(b.masked, kMinusInfValue).out(lp, kMinusInfValue);
  b.op("aten::neg").in(lp, kMinusInfValue).out(n, kInfValue);
  const OpId sum = b.op("aten::sum").in(n, kInfValue).out(loss, kInfValue).end();
  b.op("aten::mul").in(loss, kInfValue).out(out, kInfValue);
  b.sink("loss", out, kInfValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, sum);
}

TEST(Intent, InfinitiesBeyondThoseIntendedAreABirth) {
  Masked b;
  const Tensor e = b.storage(), loss = b.storage();
  const OpId exp = b.op("aten::exp").in(b.masked, kMinusInfValue).out(e, kInfValue).end();  // exp(-Inf) is 0
  b.op("aten::mean").in(e, kInfValue).out(loss, kInfValue);
  b.sink("loss", loss, kInfValue);
  Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, exp);

  Masked c;
  const Tensor half = c.storage(), total = c.storage();
  const OpId cast = c.op("aten::_to_copy").in(c.masked, kMinusInfValue).out(half, {.neg_inf = 3}).end();
  c.op("aten::mean").in(half, {.neg_inf = 3}).out(total, kMinusInfValue);
  c.sink("loss", total, kMinusInfValue);
  found = locate(c.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, cast);
}

TEST(Intent, BroadcastingAMaskIsNotGrowth) {
  TraceBuilder b;
  const Tensor mask = b.storage(Origin::kBuffer, {2, 2}), scores = b.storage(Origin::kUnknown, {8, 2, 2});
  const Tensor sum = b.storage(Origin::kUnknown, {8, 2, 2}), p = b.storage(Origin::kUnknown, {8, 2, 2});
  b.op("aten::add")
      .in(scores)
      .in(mask, {.neg_inf = 1, .min = 0, .max = 0, .zero = 3}, "other")
      .out(sum, {.neg_inf = 8});
  b.op("aten::_softmax").in(sum, {.neg_inf = 8}).out(p);
  const Located found = locate(b.trace);
  EXPECT_TRUE(found.births.empty());
  EXPECT_TRUE(found.absorbed.empty());
}

TEST(Intent, MasksFromOutsideAndDataFromOutside) {
  const Values mask{.neg_inf = 2, .min = 0, .max = 0, .zero = 2};
  const Values one_or_zero{.pos_inf = 1, .min = 0, .max = 1, .zero = 1};
  const Values log_probabilities{.neg_inf = 1, .min = -3, .max = -0.5};
  const Values features{.pos_inf = 1, .min = -2, .max = 2};
  const Values broken_mask{.nan = 1, .neg_inf = 1, .min = 0, .max = 0, .zero = 2};
  struct Case {
    Origin origin;
    Values values;
    bool intended;
  };
  for (const Case& c :
       {Case{Origin::kBuffer, mask, true}, Case{Origin::kBatch, mask, true}, Case{Origin::kUnknown, mask, true},
        Case{Origin::kParameter, mask, false}, Case{Origin::kOptimizerState, mask, false},
        Case{Origin::kBatch, one_or_zero, true}, Case{Origin::kBuffer, log_probabilities, true},
        Case{Origin::kUnknown, log_probabilities, true}, Case{Origin::kBatch, log_probabilities, false},
        Case{Origin::kBatch, features, false}, Case{Origin::kBuffer, features, false},
        Case{Origin::kConstant, features, true}, Case{Origin::kBuffer, broken_mask, false}}) {
    TraceBuilder b;
    const Tensor x = b.storage(c.origin), y = b.storage(), z = b.storage();
    b.op("aten::slice").in(x.part(0, 1), {.neg_inf = 1}).out(x.part(0, 1), {.neg_inf = 1}).view();  // a slice says less
    b.op("aten::clone").in(x, c.values).out(y, c.values);
    const OpId mul = b.op("aten::mul").in(y, c.values).out(z, kNanValue).end();
    b.sink("loss", z, kNanValue);
    const Located found = locate(b.trace);
    ASSERT_EQ(found.births.size(), 1u);
    EXPECT_EQ(found.births[0].op, c.intended ? mul : kNone);
  }
}

TEST(Intent, WhatIsMultipliedAndAddedUpIsNoMask) {
  const Values one_and_inf{.pos_inf = 1, .min = 1, .max = 1};
  for (const auto* product : {"aten::addmm", "aten::convolution", "aten::_native_batch_norm_legit_no_training"}) {
    for (const auto* copy : {"aten::view", "aten::clone", "aten::stack"}) {
      TraceBuilder b;
      const Tensor x = b.storage(Origin::kBatch), y = b.storage(), z = b.storage();
      const bool view = std::string_view(copy) == "aten::view";
      if (view) {
        b.op(copy).in(x, one_and_inf).out(x, one_and_inf).view();
      } else {
        b.op(copy).in(x, one_and_inf).out(y, one_and_inf);
      }
      b.op(product).in(view ? x : y, one_and_inf).out(z, kNanValue);
      b.sink("loss", z, kNanValue);
      const Located found = locate(b.trace);
      ASSERT_EQ(found.births.size(), 1u);
      EXPECT_EQ(found.births[0].op, kNone);
      EXPECT_EQ(found.births[0].storage, x.storage);
    }
  }
}

// A NaN is no mask: what computes with it only passes it on, and the caller that wrote it is the birth.
TEST(Intent, NanConstantIsBirthOnlyWhenComputedWith) {
  TraceBuilder b;
  const Tensor h = b.storage(), s = b.storage(), shown = b.storage(), z = b.storage();
  const OpId full = b.op("aten::full").number(NAN, "fill_value").out(h, {.nan = 4}).end();
  b.op("aten::cat").in(h, {.nan = 4}, "tensors").out(s, {.nan = 4});
  b.op("aten::nanmean").in(s, {.nan = 4}).out(shown);
  EXPECT_TRUE(locate(b.trace).absorbed.empty());
  const OpId mul = b.op("aten::mul").in(s, {.nan = 4}).out(z, kNanValue).end();
  const Tensor loss = b.storage(Origin::kUnknown, {1});
  b.op("aten::sum").in(z, kNanValue).out(loss, kNanValue);
  b.sink("loss", loss, kNanValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, full);
  EXPECT_EQ(found.births[0].kind, "data");
  EXPECT_EQ(found.births[0].first_reader, mul);
  EXPECT_EQ(found.births[0].path, (std::vector<OpId>{1, mul, mul + 1}));
}

// From finite inputs and numbers an op gave NaN by selecting a constant of its own: a domain error, nobody's
// intent.
TEST(Intent, OpSelectingItsOwnNanIsTheBirth) {
  TraceBuilder b;
  const Tensor w = b.storage(), nan = b.storage(), d = b.storage(), loss = b.storage();
  OpId logdet;
  {
    auto outer = b.op("aten::logdet");
    logdet = outer.in(w).id();
    {
      auto where = b.op("aten::where");
      where.in(d).number(NAN, "self");
      b.op("aten::scalar_tensor").number(NAN, "s").out(nan, kNanValue);
      b.op("aten::where").in(nan, kNanValue).in(w, kClean, "other").out(d, kNanValue);
      where.out(d, kNanValue);
    }
    outer.out(d, kNanValue);
  }
  b.op("aten::sub").in(d, kNanValue, "other").out(loss, kNanValue);
  b.sink("loss", loss, kNanValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, logdet);
}

TEST(Intent, HostResultStemsFromWhatTheOpRead) {
  TraceBuilder b;
  const Tensor x = b.storage(), m = b.storage(), v = b.storage(), loss = b.storage();
  const OpId mean = b.op("aten::mean").in(x).out(m, kNanValue).end();
  {
    auto var = b.op("aten::var");  // of a whole tensor: sums on the host, and fills in the result
    var.in(m, kNanValue);
    b.op("aten::fill_").inout(v, kClean).number(NAN).out(v, kNanValue);
    var.out(v, kNanValue);
  }
  b.op("aten::mul").in(v, kNanValue).out(loss, kNanValue);
  b.sink("loss", loss, kNanValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, mean);
}

TEST(Intent, MaximumOverFullyMaskedRowIsTheBirth) {
  Masked b{kAllMinusInf};
  const Tensor largest = b.storage(Origin::kUnknown, {1}), loss = b.storage(Origin::kUnknown, {1});
  constexpr Values kOne{.neg_inf = 1, .min = 0, .max = 0};
  auto max = b.op("aten::max");  // of a whole tensor
  max.in(b.masked, kAllMinusInf);
  b.op("aten::fill_").inout(largest, kClean).number(-INFINITY).out(largest, kOne);
  max.out(largest, kOne);
  const OpId id = max.end();
  b.op("aten::neg").in(largest, kOne).out(loss, Values{.pos_inf = 1, .min = 0, .max = 0});
  b.sink("loss", loss, Values{.pos_inf = 1, .min = 0, .max = 0});
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, id);
}

TEST(Intent, CastOfIntendedInfinitiesToNanIsBirth) {
  Masked b;  // float8_e4m3fn has no infinity
  const Tensor narrow = b.storage(), p = b.storage(Origin::kUnknown, {1});
  const OpId cast = b.op("aten::_to_copy").in(b.masked, kMinusInfValue).out(narrow, kNanValue).end();
  b.op("aten::sum").in(narrow, kNanValue).out(p, kNanValue);
  b.sink("loss", p, kNanValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, cast);
}

TEST(Intent, IntendedInfinitySavedForBackward) {
  TraceBuilder b;  // logsumexp over a column that is all -Inf
  const Tensor a = b.storage(), l = b.storage(), g = b.storage(), ga = b.storage();
  b.op("aten::full").number(-INFINITY).out(a, kAllMinusInf);
  const OpId lse = b.op("aten::logsumexp").in(a, kAllMinusInf).out(l, kAllMinusInf).end();
  OpId sub;
  {
    auto node = b.node("LogsumexpBackward0");
    node.in(g, kClean, "grad_output").forward(lse);
    sub = b.op("aten::sub").in(a, kAllMinusInf).in(l, kAllMinusInf, "other").out(ga, kNanValue).end();
  }
  b.sink("gradient", ga, kNanValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, sub);
  EXPECT_EQ(found.births[0].kind, "backward");
  EXPECT_EQ(found.births[0].forward, lse);
}

TEST(Intent, NumberFromTheHostKeepsItsCause) {
  TraceBuilder b;
  const Tensor x = b.storage(), n = b.storage(), y = b.storage(), z = b.storage(), m = b.storage();
  const OpId norm = b.op("aten::linalg_vector_norm").in(x).out(n, kInfValue).end();
  b.op("aten::item").in(n, kInfValue);
  b.op("aten::mul").in(x).number(INFINITY, "other").out(y, kInfValue);
  b.sink("gradient", y, kInfValue);
  Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, norm);

  // A mask is a mask, whatever number was read before.
  b.trace.sinks.clear();
  b.op("aten::masked_fill").in(x).number(INFINITY).out(m, kInfValue);
  const OpId mul = b.op("aten::mul").in(m, kInfValue).out(z, kNanValue).end();
  b.sink("loss", z, kNanValue);
  found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, mul);
}

TEST(Intent, ZeroTimesAnInfiniteNumberIsABirth) {
  TraceBuilder b;
  const Tensor x = b.storage(), y = b.storage();
  const OpId mul =
      b.op("aten::mul").in(x, {.min = 0, .max = 0, .zero = 4}).number(INFINITY, "other").out(y, kNanValue).end();
  b.sink("loss", y, kNanValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, mul);
}

// Idioms of healthy programs: something non-finite appears, nothing reaches a sink.
TEST(Intent, HealthyIdiomsGiveNoBirth) {
  {  // where(x > 0, log(x), 0) on data
    TraceBuilder b;
    const Tensor x = b.storage(Origin::kBatch), l = b.storage(), w = b.storage(), loss = b.storage();
    const OpId log = b.op("aten::log").in(x).out(l, kNanValue).end();
    OpId where;  // the innermost of the two that select
    {
      auto outer = b.op("aten::where");
      outer.in(l, kNanValue);
      where = b.op("aten::where").in(l, kNanValue).out(w).end();
      outer.out(w);
    }
    b.op("aten::mean").in(w).out(loss);
    b.sink("loss", loss, kClean);
    const Located found = locate(b.trace);
    EXPECT_TRUE(found.births.empty());
    ASSERT_EQ(found.absorbed.size(), 1u);
    EXPECT_EQ(found.absorbed[0].op, log);
    EXPECT_EQ(found.absorbed[0].absorbed_by, where);
  }
  {  // top-k filtering, then sampling
    Masked b;
    const Tensor p = b.storage(), i = b.storage();
    b.op("aten::softmax").in(b.masked, kMinusInfValue).out(p);
    b.op("aten::multinomial").in(p).out(i);
    const Located found = locate(b.trace);
    EXPECT_TRUE(found.births.empty() && found.absorbed.empty());
  }
  {  // running minimum that starts at +Inf
    TraceBuilder b;
    const Tensor best = b.storage(), d = b.storage(), low = b.storage();
    b.op("aten::full").number(INFINITY).out(best, {.pos_inf = 4});
    b.op("aten::minimum").in(best, {.pos_inf = 4}).in(d, kClean, "other").out(low);
    b.sink("loss", low, kClean);
    const Located found = locate(b.trace);
    EXPECT_TRUE(found.births.empty() && found.absorbed.empty());
  }
  {  // degree^-1/2 of an isolated node, replaced afterwards
    TraceBuilder b;
    const Tensor d = b.storage(), r = b.storage(), f = b.storage();
    const OpId pow =
        b.op("aten::pow").in(d, {.min = 0, .max = 3, .zero = 1}).number(-0.5, "exponent").out(r, kInfValue).end();
    b.op("aten::masked_fill").in(r, kInfValue).number(0).out(f);
    b.sink("gradient", f, kClean);
    const Located found = locate(b.trace);
    EXPECT_TRUE(found.births.empty());
    ASSERT_EQ(found.absorbed.size(), 1u);
    EXPECT_EQ(found.absorbed[0].op, pow);
  }
}

}  // namespace
}  // namespace finitude::locate
