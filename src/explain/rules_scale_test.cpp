// Loss scales that are the cause of an overflow, and targets of ctc_loss that their inputs are too short for.
#include <gtest/gtest.h>

#include "explain/trace_builder.h"

namespace finitude::explain {
namespace {

using record::Phase;
using sense::DType;
using B = TraceBuilder;

TEST(LossScale, ConstantScaleButNotAnUnscaledOverflow) {
  for (const bool scaled : {true, false}) {
    B b;
    auto loss = b.tensor({50}), big = b.tensor({50.0 * (1 << 20)});
    big.requires_grad = true;
    if (scaled) b.op("aten::mul", {{"self", loss}, {"other", b.number(1 << 20)}}, {big});
    const auto gradient = b.tensor({1e7});
    b.begin_node("MmBackward0", record::kNone);
    b.op("aten::mm", {}, {gradient});
    b.end_node();
    b.phase = Phase::kOptimizer;
    b.born(b.op("aten::_to_copy", {{"self", gradient}}, {b.tensor({kInf}, DType::kFloat16)}));
    EXPECT_EQ(b.explained().cause_class, scaled ? "loss-scale-misuse" : "half-precision-overflow");
  }
}

// loss * 1e38 in float32: the product itself, or a gradient of it. 1e3 is the weight of a loss.
TEST(LossScale, ConstantScaleBeyondFloat32) {
  for (const double scale : {1e38, 1e3}) {
    B b;
    auto loss = b.tensor({99});
    loss.requires_grad = true;
    b.born(b.op("aten::mul", {{"self", loss}, {"other", b.number(scale)}}, {b.tensor({kInf})}));
    b.trace.ops[0].outputs[0].requires_grad = true;
    EXPECT_EQ(b.explained().cause_class == "loss-scale-misuse", scale == 1e38) << b.explained().text;
  }
  for (const bool fits : {true, false}) {
    TableLab lab;
    lab.answers = {{"scale", {fits ? 1 : kInf}}, {"again", {kInf}}};
    B b;
    b.lab = &lab;
    auto big = b.tensor({9e37});
    big.requires_grad = true;
    b.op("aten::mul", {{"self", b.tensor({0.9})}, {"other", b.number(1e38)}}, {big});
    b.begin_node("MmBackward0", record::kNone);
    const auto gradient = b.tensor({9e37});
    b.op("aten::mul", {}, {gradient});
    b.born(b.op("aten::mm", {{"self", gradient}, {"mat2", b.tensor({20})}}, {b.tensor({kInf})}));
    EXPECT_EQ(b.explained().cause_class == "loss-scale-misuse", fits) << b.explained().text;
  }
}

TEST(LossScale, ALargeWeightBesideAScalerIsNone) {
  B b;
  b.history.scaler_active = true;
  b.history.scale = 65536;
  auto loss = b.tensor({10}, DType::kFloat16), big = b.tensor({kInf}, DType::kFloat16);
  loss.requires_grad = big.requires_grad = true;
  b.born(b.op("aten::mul", {{"self", loss}, {"other", b.number(1e7)}}, {big}));
  EXPECT_EQ(b.explained().cause_class, "half-precision-overflow") << b.explained().text;
}

TEST(LossScale, AScaleThatMultipliesTheLossTwice) {
  for (const bool twice : {true, false}) {
    B b;
    b.history.scaler_active = true;
    b.history.scale = 65536;
    auto loss = b.tensor({2}), once = b.tensor({2 * 65536.0}), again = b.tensor({2 * 65536.0 * 65536.0});
    loss.requires_grad = once.requires_grad = again.requires_grad = true;
    b.op("aten::mul", {{"self", loss}, {"other", b.tensor({65536})}}, {once});
    b.op("aten::mul", {{"self", once}, {"other", b.tensor({twice ? 65536.0 : 3.0})}}, {again});
    b.born(b.op("aten::pow", {{"self", b.tensor({1e30})}}, {b.tensor({kInf})}, {B::scalar("exponent", 2)}));
    EXPECT_EQ(b.explained().cause_class, twice ? "loss-scale-misuse" : "overflow");
    EXPECT_EQ(b.explained().text.find("twice at model.py:1 and at model.py:2") != std::string::npos, twice);
  }
}

TEST(InfeasibleCtc, EqualNeighboursTakeAStepEach) {
  const auto said = [](std::vector<std::int64_t> shape, std::vector<std::int64_t> labels,
                       std::vector<std::int64_t> targets) {
    TableLab lab;
    lab.lists = {{"targets", {std::move(shape), std::move(labels)}},
                 {"input_lengths", {{3}, {5, 5, 5}}},
                 {"target_lengths", {{3}, std::move(targets)}}};
    B b;
    b.lab = &lab;
    b.born(b.op("aten::_ctc_loss", {{"log_probs", b.tensor({-1, -2})}}, {b.tensor({1, 2, kInf}), b.tensor({-kInf})}));
    return b.explained().text;
  };
  EXPECT_NE(
      said({3, 4}, {1, 2, 3, 4, 1, 2, 1, 2, 3, 3, 3, 2}, {4, 4, 4})
          .find("sample 2 has a target of 4 with 2 pairs of equal neighbours, which takes 6 steps, for an input of "
                "5"),
      std::string::npos);
  // One after the other: a pair over the end of a sample is none.
  const std::string joined = said({10}, {1, 2, 3, 3, 3, 4, 4, 3, 1, 1}, {3, 4, 3});
  EXPECT_NE(joined.find("sample 1 has a target of 4 with 2 pairs"), std::string::npos) << joined;
  EXPECT_EQ(joined.find("sample 0"), std::string::npos) << joined;
  EXPECT_EQ(joined.find("sample 2"), std::string::npos) << joined;
}

}  // namespace
}  // namespace finitude::explain
