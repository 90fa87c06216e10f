// Rules that go by where a value came from, by the setting, and by ops that fail in one way: each with an
// innocent twin.
#include <gtest/gtest.h>

#include "explain/trace_builder.h"

namespace finitude::explain {
namespace {

using record::Origin;
using record::Phase;
using sense::DType;
using B = TraceBuilder;

constexpr DType kHalf = DType::kFloat16;

TEST(FullyMaskedSoftmax, ForwardAndLogsumexpBackward) {
  B b;
  const auto scores = B::shaped(b.tensor({1, 2, -kInf, -kInf}), {2, 2});
  b.born(b.op("aten::_softmax", {{"self", scores}}, {B::shaped(b.tensor({.3, .7, kNaN, kNaN}), {2, 2})},
              {B::scalar("dim", -1)}))
      .rows = {1};
  EXPECT_EQ(b.explained().cause_class, "fully-masked-softmax");
  B back;
  const auto x = B::shaped(back.tensor({-kInf, -kInf}), {2, 1}), out = back.tensor({-kInf});
  const auto lse = back.op("aten::logsumexp", {{"self", x}}, {out}, {{"dim", "[0]", std::nullopt, false}});
  back.begin_node("LogsumexpBackward0", lse);
  back.born(back.op("aten::sub", {{"self", x}, {"other", out}}, {back.tensor({kNaN, kNaN})}));
  EXPECT_EQ(back.explained().cause_class, "fully-masked-softmax");
  B twin;  // +Inf, not a mask
  twin.born(twin.op("aten::_softmax", {{"self", twin.tensor({kInf, 1})}}, {twin.tensor({kNaN, 0})}));
  EXPECT_FALSE(twin.speaks("fully-masked-softmax"));
  EXPECT_EQ(twin.explained().cause_class, "infinity-minus-infinity");
}

TEST(FullyMaskedSoftmax, OrAMaximumWithNothingLeftToPick) {
  for (const double infinity : {-kInf, kInf}) {
    B b;
    const auto masked = b.tensor({infinity, infinity});
    b.op("aten::masked_fill", {{"self", b.tensor({1, 2})}}, {masked}, {B::scalar("value", infinity)});
    b.born(b.op(infinity < 0 ? "aten::max" : "aten::amin", {{"self", masked}}, {b.tensor({infinity})}));
    EXPECT_EQ(b.explained().cause_class, "fully-masked-softmax");
  }
  B twin;  // computed, not masked
  const auto grown = twin.tensor({kInf, kInf});
  twin.op("aten::exp", {{"self", twin.tensor({100, 200})}}, {grown});
  twin.born(twin.op("aten::max", {{"self", grown}}, {twin.tensor({kInf})}));
  EXPECT_FALSE(twin.speaks("fully-masked-softmax"));
}

TEST(DegenerateLinalg, EqualEigenvaluesInBackward) {
  B b;
  const auto eigh = b.op("aten::_linalg_eigh", {{"A", b.tensor({1, 0, 0, 1})}}, {b.tensor({1, 1})});
  b.begin_node("LinalgEighBackward0", eigh);
  b.born(b.op("aten::div_", {{"self", b.tensor({0, 1})}, {"other", b.tensor({0, 1})}}, {b.tensor({kNaN, 1})}));
  EXPECT_EQ(b.explained().cause_class, "degenerate-linalg");
  B twin;
  const auto norm = twin.op("aten::linalg_vector_norm", {{"self", twin.tensor({0, 0})}}, {twin.tensor({0})});
  twin.begin_node("LinalgVectorNormBackward0", norm);
  twin.born(twin.op("aten::div", {{"self", twin.tensor({0})}, {"other", twin.tensor({0})}}, {twin.tensor({kNaN})}));
  EXPECT_FALSE(twin.speaks("degenerate-linalg"));
  EXPECT_EQ(twin.explained().cause_class, "domain-edge");
}

TEST(DivisionByZero, TheNormThatAFusedNormalisationHandsOut) {
  B b;
  b.born(b.op("aten::_weight_norm_interface", {{"v", b.tensor({0, 0})}, {"g", b.tensor({0})}},
              {b.tensor({kNaN, kNaN}), b.tensor({0})}));
  const Finding f = b.explained();
  EXPECT_EQ(f.cause_class, "division-by-zero");
  EXPECT_NE(f.text.find("the norm of a zero vector"), std::string::npos) << f.text;
  B layer;
  layer.born(layer.op("aten::native_layer_norm", {{"input", layer.tensor({2, 2})}},
                      {layer.tensor({kNaN, kNaN}), layer.tensor({2}), layer.tensor({kInf})}));
  const Finding g = layer.explained();
  EXPECT_EQ(g.cause_class, "division-by-zero");
  EXPECT_NE(g.text.find("a spread of zero"), std::string::npos) << g.text;
}

TEST(DivisionByZero, OperandDecidesWhetherRootIsSpreadOrNorm) {
  const auto reported = [](const char* reduces, const char* squares) {
    B b;
    const auto all = b.tensor({0, 0}), one = b.tensor({0}), root = b.tensor({0});
    b.op(squares, {{"self", b.tensor({0, 0})}}, {all});
    b.op(reduces, {{"self", all}}, {one});
    b.op("aten::sqrt", {{"self", one}}, {root});
    b.born(b.op("aten::div", {{"self", b.tensor({1})}, {"other", root}}, {b.tensor({kInf})}));
    return b.explained().text;
  };
  EXPECT_NE(reported("aten::var", "aten::relu").find("a spread of zero"), std::string::npos);
  EXPECT_NE(reported("aten::mean", "aten::square").find("a spread of zero"), std::string::npos);
  EXPECT_NE(reported("aten::sum", "aten::pow").find("the norm of a zero vector"), std::string::npos);
  for (const auto& [reduces, squares] :
       {std::pair{"aten::cumprod", "aten::rsub"}, {"aten::sum", "aten::relu"}, {"aten::mean", "aten::relu"}}) {
    const std::string text = reported(reduces, squares);
    EXPECT_EQ(text.find("spread"), std::string::npos) << text;
    EXPECT_EQ(text.find("norm"), std::string::npos) << text;
  }
}

TEST(DivisionByZero, WhatAMaskTookAwayHasNotUnderflowed) {
  for (const bool masked : {true, false}) {
    TraceBuilder b;
    const auto small = b.tensor({1e-30, 2});
    const auto mask = masked ? b.tensor({0, 1}, sense::DType::kOther) : b.tensor({1e-30, 1});
    const auto kept = b.tensor({0, 2});
    b.op("aten::mul", {{"self", small}, {"other", mask}}, {kept});
    b.born(b.op("aten::div", {{"self", b.tensor({1, 1})}, {"other", kept}}, {b.tensor({kInf, 0.5})}));
    EXPECT_EQ(b.explained().cause_class, masked ? "division-by-zero" : "underflow");
  }
}

TEST(DivisionByZero, RequestedZeroHasNotUnderflowed) {
  for (const double factor : {0.0, 1e-30}) {
    B b;
    const auto product = b.tensor({0, 0}), norm = b.tensor({0});
    b.op("aten::mul", {{"self", b.tensor({1e-20, -1e-18})}, {"other", b.number(factor)}}, {product});
    b.op("aten::linalg_vector_norm", {{"self", product}}, {norm});
    b.born(b.op("aten::reciprocal", {{"self", norm}}, {b.tensor({kInf})}));
    EXPECT_EQ(b.explained().cause_class, factor == 0 ? "division-by-zero" : "underflow") << factor;
  }
}

TEST(InfeasibleCtc, LossAndNotItsTable) {
  B b;
  b.born(b.op("aten::_ctc_loss", {{"log_probs", b.tensor({-1, -2})}}, {b.tensor({1, kInf}), b.tensor({-kInf, 0})},
              {{"input_lengths", "[6, 6]", std::nullopt, false}, {"target_lengths", "[2, 7]", std::nullopt, false}}));
  const Finding f = b.explained();
  EXPECT_EQ(f.cause_class, "infeasible-ctc");
  EXPECT_NE(f.text.find("sample 1 has a target of 7 for an input of 6"), std::string::npos) << f.text;
  B twin;
  twin.born(twin.op("aten::_ctc_loss", {{"log_probs", twin.tensor({-1, -2})}},
                    {twin.tensor({1, 2}), twin.tensor({-kInf, 0})}));
  EXPECT_FALSE(twin.speaks("infeasible-ctc"));
}

TEST(HalfOverflow, ProductCastAndMaskConstant) {
  B b;
  b.born(b.op("aten::mm", {{"self", b.tensor({300}, kHalf)}, {"mat2", b.tensor({400}, kHalf)}},
              {b.tensor({kInf}, kHalf)}));
  EXPECT_EQ(b.explained().cause_class, "half-precision-overflow");
  B cast;
  cast.born(cast.op("aten::_to_copy", {{"self", cast.tensor({1e5})}}, {cast.tensor({kInf}, kHalf)}));
  EXPECT_EQ(cast.explained().cause_class, "half-precision-overflow");

  B copied;  // into memory of the format: what is cast is not called self there
  copied.born(copied.op("aten::copy_", {{"self", copied.tensor({1}, kHalf)}, {"src", copied.tensor({1e5})}},
                        {copied.tensor({kInf}, kHalf)}));
  const Finding into = copied.explained();
  ASSERT_FALSE(into.edits.empty());
  EXPECT_EQ(into.edits.front().arg, "src");

  B integers;  // of which the trace has no statistics; what the target held before is no operand
  const auto seconds = integers.tensor({71000, 5}, sense::DType::kOther);
  integers.born(integers.op("aten::copy_", {{"self", integers.tensor({1, 1}, kHalf)}, {"src", seconds}},
                            {integers.tensor({kInf, 5}, kHalf)}));
  EXPECT_EQ(integers.explained().cause_class, "half-precision-overflow");
  B mask;
  const auto half = mask.tensor({-kInf}, kHalf);
  mask.op("aten::_to_copy", {{"self", mask.tensor({-1e10})}}, {half});
  mask.born(mask.op("aten::mul", {{"self", mask.tensor({0, 1}, kHalf)}, {"other", half}},
                    {mask.tensor({kNaN, -kInf}, kHalf)}));
  EXPECT_EQ(mask.explained().cause_class, "half-precision-overflow");
  B twin;  // the infinity was asked for
  const auto asked = twin.tensor({-kInf}, kHalf);
  twin.op("aten::full", {}, {asked}, {B::scalar("fill_value", -kInf)});
  twin.born(twin.op("aten::mul", {{"self", twin.tensor({0, 1}, kHalf)}, {"other", asked}},
                    {twin.tensor({kNaN, -kInf}, kHalf)}));
  EXPECT_EQ(twin.explained().cause_class, "zero-times-infinity");
}

TEST(HalfUnderflow, LostEpsilonAndClampThatDoesNothing) {
  B b;
  const auto v = b.tensor({0, 1}, kHalf), with_eps = b.tensor({0, 1}, kHalf), root = b.tensor({0, 1}, kHalf);
  b.op("aten::add", {{"self", v}, {"other", b.number(1e-12)}}, {with_eps});
  b.op("aten::sqrt", {{"self", with_eps}}, {root});
  b.born(b.op("aten::div", {{"self", b.tensor({0, 1}, kHalf)}, {"other", root}}, {b.tensor({kNaN, 1}, kHalf)}));
  const Finding f = b.explained();
  EXPECT_EQ(f.cause_class, "half-precision-underflow");
  EXPECT_NE(f.text.find("1e-12"), std::string::npos) << f.text;
  B clamp;
  const DType bf16 = DType::kBFloat16;
  const auto p = clamp.tensor({1, .5}, bf16), bounded = clamp.tensor({1, .5}, bf16),
             negated = clamp.tensor({-1, -.5}, bf16), out = clamp.tensor({-kInf, -.7}, bf16);
  clamp.op("aten::_to_copy", {{"self", clamp.tensor({0.9999999, .5})}}, {p});
  clamp.op("aten::clamp", {{"self", p}}, {bounded}, {B::scalar("max", 1 - 1e-6)});
  clamp.op("aten::neg", {{"self", bounded}}, {negated});
  const auto log = clamp.op("aten::log1p", {{"self", negated}}, {out});
  clamp.begin_node("Log1PBackward0", log);
  clamp.born(clamp.op("aten::div", {{"self", clamp.tensor({0, 1}, bf16)}, {"other", clamp.tensor({0, .5}, bf16)}},
                      {clamp.tensor({kNaN, 2}, bf16)}));
  EXPECT_EQ(clamp.explained().cause_class, "half-precision-underflow");
  B one;  // 1 - sigmoid
  const auto sig = one.tensor({1, .5}, bf16), less = one.tensor({0, .5}, bf16);
  one.op("aten::sigmoid", {{"self", one.tensor({100, 0}, bf16)}}, {sig});
  one.op("aten::rsub", {{"self", sig}, {"other", one.number(1)}}, {less});
  one.born(one.op("aten::log", {{"self", less}}, {one.tensor({-kInf, -.7}, bf16)}));
  EXPECT_NE(one.explained().text.find("sigmoid in bfloat16 rounds to exactly 1, from which 0 is made"),
            std::string::npos)
      << one.explained().text;
  B twin;  // a count of zero is zero in any format
  const auto count = twin.tensor({0}, kHalf);
  twin.op("aten::eq", {{"self", twin.tensor({3}, kHalf)}}, {count});
  twin.born(twin.op("aten::div", {{"self", twin.tensor({0}, kHalf)}, {"other", count}}, {twin.tensor({kNaN}, kHalf)}));
  EXPECT_EQ(twin.explained().cause_class, "division-by-zero");
}

TEST(Clipping, OverflowedNormOfGradientsOnly) {
  for (const Origin origin : {Origin::kGradient, Origin::kUnknown}) {
    B b;
    b.phase = Phase::kOptimizer;
    const auto g = b.tensor({1e30, 1e30}, DType::kFloat32, origin);
    b.born(b.op("aten::linalg_vector_norm", {{"self", g}}, {b.tensor({kInf})}));
    EXPECT_EQ(b.speaks("clipping"), origin == Origin::kGradient);
    EXPECT_EQ(b.explained().cause_class, origin == Origin::kGradient ? "clipping" : "optimizer-arithmetic");
  }
}

TEST(OptimizerArithmetic, ZeroOverZeroAndAnOverflowedMoment) {
  B b;
  b.phase = Phase::kOptimizer;
  b.born(b.op("aten::div", {{"self", b.tensor({0, 1})}, {"other", b.tensor({0, 1})}}, {b.tensor({kNaN, 1})}));
  EXPECT_EQ(b.explained().cause_class, "optimizer-arithmetic");
  B moment;
  moment.phase = Phase::kOptimizer;
  const auto g = moment.tensor({4e22});
  moment.born(moment.op("aten::_foreach_addcmul_", {{"self", moment.tensor({0})}, {"tensor1", g}, {"tensor2", g}},
                        {moment.tensor({kInf})}));
  EXPECT_EQ(moment.explained().cause_class, "optimizer-arithmetic");
  EXPECT_TRUE(moment.explained().is_overflow);
  EXPECT_FALSE(b.explained().is_overflow);
  B twin;  // the same division in forward
  twin.born(
      twin.op("aten::div", {{"self", twin.tensor({0, 1})}, {"other", twin.tensor({0, 1})}}, {twin.tensor({kNaN, 1})}));
  EXPECT_FALSE(twin.speaks("optimizer-arithmetic"));
}

TEST(WrongBackward, CustomFunctionsOnly) {
  for (const char* node : {"CumulativeProductBackward", "DivBackward0"}) {
    B b;
    b.begin_node(node, record::kNone);
    const auto div =
        b.op("aten::div", {{"self", b.tensor({0, 1})}, {"other", b.tensor({0, 1})}}, {b.tensor({kNaN, 1})});
    b.trace.ops[div].stack = b.line(40);
    b.born(div);
    const bool custom = std::string(node) != "DivBackward0";
    EXPECT_EQ(b.explained().cause_class, custom ? "wrong-backward" : "division-by-zero");
    EXPECT_EQ(b.explained().fix_line, 40);
    EXPECT_EQ(b.explained().text.find("custom Function CumulativeProduct makes") != std::string::npos, custom);
  }
}

TEST(MemoryCorruption, OverwrittenBetweenForwardAndBackward) {
  for (const bool overwritten : {true, false}) {
    B b;
    const auto buffer = b.tensor({2, 3});
    const auto forward = b.op("aten::mul", {{"self", buffer}, {"other", buffer}}, {b.tensor({4, 9})});
    const auto now = overwritten ? B::holding(buffer, {kNaN, kNaN}) : buffer;
    if (overwritten) b.op("aten::fill_", {{"self", buffer}}, {now}, {B::scalar("value", kNaN)});
    b.begin_node("SquareBackward", forward);
    b.born(b.op("aten::mul", {{"self", b.tensor({1, 1})}, {"other", now}}, {b.tensor({kNaN, kNaN})}));
    EXPECT_EQ(b.speaks("memory-corruption"), overwritten);
  }
}

// As above, where what wrote it is no operator: a birth of memory, which backward came upon.
TEST(MemoryCorruption, SharedMemoryWrittenByOtherCode) {
  for (const bool read_finite : {true, false}) {
    B b;
    const auto staged = b.tensor({2, 3});
    const auto forward =
        b.op("aten::mul", {{"self", read_finite ? staged : B::holding(staged, {kNaN, 3})}}, {b.tensor({4, 9})});
    b.begin_node("MulBackward0", forward);
    const auto reader = b.op("aten::mul", {{"other", B::holding(staged, {kNaN, 3})}}, {b.tensor({kNaN, 1})});
    auto& birth = b.born(reader);
    birth.kind = "memory", birth.op = birth.node = birth.forward = record::kNone, birth.storage = staged.storage;
    birth.first_reader = reader;
    const Finding found = b.explained();
    EXPECT_EQ(found.cause_class, "memory-corruption");
    EXPECT_EQ(found.text.find("was finite when aten::mul at model.py:1 read it") != std::string::npos, read_finite)
        << found.text;
  }
}

// An operator that wrote a part of it has not left finite values in the rest.
TEST(MemoryCorruption, WriterOfAPartIsNotWriterOfAll) {
  for (const bool whole : {true, false}) {
    B b;
    auto memory = b.tensor({2, 3, 4, 5});
    auto written = memory;
    if (!whole) written.end = memory.end / 2;
    b.op("aten::fill_", {{"self", written}}, {written}, {B::scalar("value", 1)});
    const auto reader = b.op("aten::mul", {{"self", B::holding(memory, {2, 3, kNaN, 5})}}, {b.tensor({2, 3, kNaN, 5})});
    auto& birth = b.born(reader);
    birth.kind = "memory", birth.op = birth.node = birth.forward = record::kNone, birth.storage = memory.storage;
    birth.first_reader = reader;
    const Finding found = b.explained();
    EXPECT_EQ(found.cause_class, "memory-corruption");
    EXPECT_EQ(found.text.find("had left finite values") != std::string::npos, whole) << found.text;
    EXPECT_EQ(found.text.find("aten::fill_ at model.py:1 wrote a part last") != std::string::npos, !whole);
  }
}

TEST(MemoryCorruption, AnOpThatDoesNotRepeat) {
  B b;
  b.born(b.op("aten::mm", {{"self", b.tensor({1})}}, {b.tensor({kNaN})}));
  TableLab lab;
  lab.answers = {{"again", {2}}};
  b.lab = &lab;
  EXPECT_EQ(b.explained().cause_class, "memory-corruption");
  lab.answers = {{"again", {kNaN}}};
  EXPECT_FALSE(b.speaks("memory-corruption"));
}

TEST(UninitialisedMemory, ReadBeforeAnyWrite) {
  B b;
  const auto w = b.tensor({kNaN, 1});
  b.trace.ops[b.op("aten::empty", {}, {w})].allocates = true;
  const auto reader = b.op("aten::mm", {{"self", w}}, {b.tensor({kNaN})});
  auto& birth = b.born(reader);
  birth.kind = "memory", birth.op = record::kNone, birth.storage = w.storage, birth.first_reader = reader;
  EXPECT_EQ(b.explained().cause_class, "uninitialised-memory");
  B twin;  // written first, with what went wrong elsewhere
  const auto t = twin.tensor({kInf, 1});
  twin.trace.ops[twin.op("aten::empty", {}, {B::holding(t, {kNaN, 1})})].allocates = true;
  twin.op("aten::copy_", {{"src", twin.tensor({kInf, 1})}}, {t});
  twin.born(twin.op("aten::mm", {{"self", t}}, {twin.tensor({kNaN})}));
  EXPECT_FALSE(twin.speaks("uninitialised-memory"));
}

TEST(State, CheckpointBatchAndRunningStatistics) {
  for (const Origin origin : {Origin::kParameter, Origin::kBuffer, Origin::kBatch}) {
    B b;
    const auto x = b.tensor({kNaN, 1}, DType::kFloat32, origin, "thing");
    const auto reader = b.op("aten::mm", {{"self", x}}, {b.tensor({kNaN})});
    auto& birth = b.born(reader);
    birth.kind = origin == Origin::kBatch ? "data" : "state";
    birth.op = record::kNone, birth.storage = x.storage, birth.first_reader = reader;
    EXPECT_EQ(b.explained().cause_class, origin == Origin::kBatch ? "bad-data" : "corrupted-state");
    b.history.loss = {1, 1};
    EXPECT_EQ(b.explained().cause_class, origin == Origin::kBatch    ? "bad-data"
                                         : origin == Origin::kBuffer ? "sticky-state"
                                                                     : "corrupted-state");
    EXPECT_NE(b.explained().text.find("thing"), std::string::npos);
  }
}

TEST(BadData, NanLabelsInTheLossAndTheirAbsence) {
  for (const bool bad : {true, false}) {
    B b;
    const auto y = b.tensor({bad ? kNaN : 1.0}, DType::kFloat32, Origin::kBatch, "batch[1]");
    b.born(b.op("aten::sub", {{"self", b.tensor({1})}, {"other", y}}, {b.tensor({kNaN})}));
    EXPECT_EQ(b.speaks("bad-data"), bad);
  }
}

// loss = loss * weight, where Python computed the weight
TEST(BadData, NumberOfTheScriptThatIsNan) {
  for (const double number : {kNaN, 2.0, kInf}) {
    B b;
    const auto other = b.tensor({number}, DType::kFloat64, Origin::kConstant);
    b.born(b.op("aten::mul", {{"self", b.tensor({1, 0})}, {"other", other}}, {b.tensor({kNaN, kNaN})}));
    EXPECT_EQ(b.speaks("bad-data"), !std::isfinite(number)) << number;
    if (std::isnan(number)) {
      EXPECT_EQ(b.explained().cause_class, "bad-data");
      EXPECT_EQ(b.explained().came_from, CameFrom::kNan);
      EXPECT_NE(b.explained().text.find("a number that is NaN already (other)"), std::string::npos)
          << b.explained().text;
    }
  }
}

// p.grad.mul_(inf): reported where nothing else is known; 0 * inf is a cause of its own
TEST(BadData, NumberOfTheScriptThatIsInfinite) {
  for (const double x : {2.0, 0.0}) {
    B b;
    const auto other = b.tensor({kInf}, DType::kFloat64, Origin::kConstant);
    b.born(
        b.op("aten::mul_", {{"self", b.tensor({1, x})}, {"other", other}}, {b.tensor({kInf, x == 0 ? kNaN : kInf})}));
    EXPECT_EQ(b.explained().cause_class, x == 0 ? "zero-times-infinity" : "bad-data") << b.explained().text;
  }
}

// h[mask] = nan
TEST(BadData, NumberThatAnIndexPutWrites) {
  B b;
  const auto number = b.tensor({kNaN});
  const auto lift = b.op("aten::lift_fresh", {}, {number});
  const auto put = b.op("aten::index_put_", {{"self", b.tensor({1, 2})}, {"values", number}}, {b.tensor({1, kNaN})});
  auto& birth = b.born(lift);
  birth.kind = "data";
  birth.first_reader = put;
  const Finding finding = b.explained();
  EXPECT_EQ(finding.cause_class, "bad-data");
  EXPECT_EQ(finding.came_from, CameFrom::kNan);
  EXPECT_NE(finding.text.find("aten::index_put_ is given a number that is NaN already (values)"), std::string::npos)
      << finding.text;
}

// pad = full(nan); h = addmm(bias, pad, w)
TEST(BadData, NanThatTheProgramWroteAsPadding) {
  for (const double mark : {kNaN, -kInf}) {
    TraceBuilder b;
    const auto pad = b.tensor({mark, mark});
    const auto full = b.op("aten::full", {}, {pad}, {TraceBuilder::scalar("fill_value", mark)});
    const auto x = TraceBuilder::holding(pad, {1, mark});
    const auto id = b.op("aten::addmm", {{"self", b.tensor({1, 1})}, {"mat1", x}, {"mat2", b.tensor({1, 2})}},
                         {b.tensor({1, kNaN})});
    b.born(std::isnan(mark) ? full : id).first_reader = std::isnan(mark) ? id : record::kNone;  // as locate has it
    EXPECT_TRUE(b.speaks("bad-data"));
    TableLab lab;
    lab.answers = {{"replace", {1, 0}}, {"float64", {1, kNaN}}};
    b.lab = &lab;
    const Finding finding = b.explained();
    if (!std::isnan(mark)) {  // it may be a mask: what else there is to say of it comes first
      EXPECT_NE(finding.cause_class, "bad-data") << finding.text;
      continue;
    }
    EXPECT_EQ(finding.cause_class, "bad-data");
    EXPECT_NE(finding.text.find("aten::full writes as a mark"), std::string::npos) << finding.text;
    EXPECT_EQ(finding.confidence, "proven");
    ASSERT_EQ(finding.edits.size(), 1u);
    EXPECT_EQ(finding.edits[0].arg, "mat1");
  }
}

TEST(Collective, OtherRankOrOverflow) {
  B b;
  b.born(b.op("c10d::allreduce_", {{"tensors", b.tensor({1})}}, {b.tensor({kNaN})}));
  EXPECT_EQ(b.explained().cause_class, "other-rank");
  B sum;
  sum.born(sum.op("c10d::allreduce_", {{"tensors", sum.tensor({3e38})}}, {sum.tensor({kInf})}));
  EXPECT_EQ(sum.explained().cause_class, "collective-overflow");
  B twin;  // this rank was bad itself
  twin.born(twin.op("c10d::allreduce_", {{"tensors", twin.tensor({kNaN})}}, {twin.tensor({kNaN})}));
  EXPECT_FALSE(twin.speaks("collective"));
}

}  // namespace
}  // namespace finitude::explain
