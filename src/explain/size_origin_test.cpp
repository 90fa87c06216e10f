// What made the operands of an overflow as large as they were, and what did not.
#include <gtest/gtest.h>

#include "explain/size_origin.h"
#include "explain/trace_builder.h"

namespace finitude::explain {
namespace {

using record::Origin;
using B = TraceBuilder;
constexpr auto kFloat = sense::DType::kFloat32;

// A layer with weights of this size, and a square of what it makes.
Finding of_layer(double weight, double made, Origin origin, std::vector<double> loss = {},
                 std::vector<double> weights = {}) {
  B b;
  b.history.loss = std::move(loss);
  b.history.param_absmax = std::move(weights);
  const auto out = b.tensor({made, 1});
  b.op("aten::mm", {{"self", b.tensor({0.5, 1})}, {"mat2", b.tensor({weight, 1}, kFloat, origin, "head.weight")}},
       {out});
  b.born(b.op("aten::pow", {{"self", out}}, {b.tensor({kInf, 1})}, {B::scalar("exponent", 2)}));
  return b.explained();
}

TEST(SizeOrigin, AWeightThatWasLargeBeforeTheFirstStep) {
  const Finding f = of_layer(1e38, 2e38, Origin::kParameter);
  EXPECT_EQ(f.cause_class, "overflow");
  EXPECT_NE(f.text.find("the size comes from head.weight, which reaches 1e+38 before the first step"),
            std::string::npos)
      << f.text;
  EXPECT_EQ(f.fix_text.rfind("initialise head.weight with smaller values", 0), 0u) << f.fix_text;
  const Finding later = of_layer(1e38, 2e38, Origin::kParameter, {1, 1}, {9e37, 1e38});
  EXPECT_NE(later.text.find("; weights were as large before the first step"), std::string::npos) << later.text;
}

TEST(SizeOrigin, NoInitialValueOfAWeightThatGrew) {
  const Finding f = of_layer(1e38, 2e38, Origin::kParameter, {1, 1}, {1, 1e38});
  EXPECT_EQ(f.fix_text.find("initialise"), std::string::npos) << f.fix_text;
}

TEST(SizeOrigin, ABatchAndABufferAreNamedToo) {
  for (const Origin origin : {Origin::kBatch, Origin::kBuffer}) {
    const Finding f = of_layer(1e38, 2e38, origin);
    EXPECT_NE(f.text.find("the size comes from head.weight, which reaches 1e+38"), std::string::npos) << f.text;
    EXPECT_EQ(f.fix_text.find("initialise"), std::string::npos) << f.fix_text;
    // Of a batch the number itself is looked at; a wider format is tried, not advised.
    EXPECT_EQ(f.fix_text.starts_with("look at what head.weight holds there"), origin == Origin::kBatch) << f.fix_text;
    EXPECT_EQ(f.fix_is_no_edit, origin == Origin::kBatch);
  }
}

TEST(SizeOrigin, ASmallDivisorIsNamed) {
  for (const double scale : {1e-36, 1e-3}) {
    B b;
    const auto out = b.tensor({1e36, 1});
    b.op("aten::div",
         {{"self", b.tensor({2, 1})}, {"other", b.tensor({scale, scale}, kFloat, Origin::kBuffer, "1.scale")}}, {out});
    b.born(b.op("aten::pow", {{"self", out}}, {b.tensor({kInf, 1})}, {B::scalar("exponent", 2)}));
    const Finding f = b.explained();
    EXPECT_EQ(f.text.find("a division by 1.scale, which is as small as 1e-36") != std::string::npos, scale == 1e-36)
        << f.text;
    EXPECT_EQ(f.fix_text.starts_with("look at what makes 1.scale so small"), scale == 1e-36) << f.fix_text;
  }
}

TEST(SizeOrigin, NeitherOrdinaryWeightsNorWhatWasNormalised) {
  for (const auto& [weight, made] : {std::pair(0.5, 2e38), std::pair(1e38, 1e20)}) {
    const Finding f = of_layer(weight, made, Origin::kParameter);
    EXPECT_EQ(f.text.find("the size comes from"), std::string::npos) << f.text;
  }
}

}  // namespace
}  // namespace finitude::explain
