#include "observe/surely_finite.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#if __has_include(<rapidcheck/gtest.h>)
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>
#define FINITUDE_HAS_RAPIDCHECK
#endif

namespace finitude::observe {
namespace {

using record::ScalarUse;
using record::SeenTensor;

SeenTensor tensor(std::string arg, double min, double max, sense::DType dtype = sense::DType::kFloat32) {
  SeenTensor out;
  out.use.arg = std::move(arg);
  out.use.dtype = dtype;
  out.use.health.numel = 4;
  out.use.health.min = min;
  out.use.health.max = max;
  out.use.health.absmax = std::max(std::fabs(min), std::fabs(max));
  return out;
}

ScalarUse scalar(std::string arg, std::optional<double> number) {
  ScalarUse out;
  out.arg = std::move(arg);
  out.number = number;
  return out;
}

TEST(SurelyFinite, TheStepsOfAnOptimizer) {
  EXPECT_TRUE(surely_finite("aten::lerp_", {tensor("self", -1, 1), tensor("end", -3, 3)}, {scalar("weight", 0.1)}));
  EXPECT_TRUE(surely_finite("aten::mul", {tensor("self", 0, 1), tensor("out", 0, 0)}, {scalar("other", 0.999)}));
  EXPECT_TRUE(surely_finite("aten::addcmul_",
                            {tensor("self", 0, 1), tensor("tensor1", -9, 9), tensor("tensor2", -9, 9)},
                            {scalar("value", 0.001)}));
  EXPECT_TRUE(surely_finite("aten::sqrt_", {tensor("self", 0, 1)}, {}));
  EXPECT_TRUE(surely_finite("aten::add_", {tensor("self", 0, 1)}, {scalar("other", 1e-8), scalar("alpha", 1)}));
  EXPECT_TRUE(surely_finite("aten::addcdiv_",
                            {tensor("self", -1, 1), tensor("tensor1", -1, 1), tensor("tensor2", 1e-8, 1)},
                            {scalar("value", -0.01)}));
  EXPECT_TRUE(surely_finite("aten::copy_", {tensor("self", 0, 0), tensor("src", -5, 5)}, {}));
}

TEST(SurelyFinite, OneDoubtProvesNothing) {
  EXPECT_FALSE(
      surely_finite("aten::addcdiv_", {tensor("self", -1, 1), tensor("tensor1", -1, 1), tensor("tensor2", 0, 1)}, {}));
  EXPECT_FALSE(surely_finite("aten::addcdiv_",
                             {tensor("self", -1, 1), tensor("tensor1", 0, 1e-30), tensor("tensor2", 1e-40, 1)}, {}))
      << "a subnormal number may be flushed";
  EXPECT_FALSE(surely_finite("aten::div_", {tensor("self", -1, 1), tensor("other", -1, 1)}, {}));
  EXPECT_FALSE(surely_finite("aten::sqrt_", {tensor("self", -1e-9, 1)}, {}));
  EXPECT_FALSE(surely_finite("aten::mul_", {tensor("self", 0, 1e30)}, {scalar("other", 1e10)}));
  EXPECT_FALSE(surely_finite("aten::mul_", {tensor("self", 0, 1)}, {scalar("other", std::nullopt)}));
  EXPECT_FALSE(
      surely_finite("aten::mul_", {tensor("self", 0, 1)}, {scalar("other", std::numeric_limits<double>::infinity())}));
  EXPECT_FALSE(surely_finite("aten::mul_", {tensor("self", 0, 1)}, {}));
  EXPECT_FALSE(
      surely_finite("aten::add_", {tensor("self", 0, 300, sense::DType::kFloat16), tensor("other", 0, 60000)}, {}))
      << "in the coarser format";
  EXPECT_FALSE(surely_finite("aten::copy_", {tensor("self", 0, 0, sense::DType::kFloat16), tensor("src", 0, 1e5)}, {}));
  EXPECT_FALSE(
      surely_finite("aten::mul_", {tensor("self", 0, 1, sense::DType::kComplex64), tensor("other", 0, 1)}, {}));
  EXPECT_FALSE(surely_finite("aten::exp_", {tensor("self", 0, 1)}, {})) << "no rule";
  EXPECT_FALSE(surely_finite("mine::mul_", {tensor("self", 0, 1), tensor("other", 0, 1)}, {}));
  SeenTensor bad = tensor("self", 0, 1);
  bad.use.health.nan = 1;
  EXPECT_FALSE(surely_finite("aten::neg_", {bad}, {}));
  SeenTensor unread = tensor("self", 0, 0);
  unread.use.health.numel = 0;
  EXPECT_FALSE(surely_finite("aten::neg_", {unread}, {}));
  SeenTensor integers = tensor("other", 0, 1, sense::DType::kOther);
  EXPECT_FALSE(surely_finite("aten::mul_", {tensor("self", 0, 1), integers}, {}));
}

#ifdef FINITUDE_HAS_RAPIDCHECK
// Any numbers of the given size: what is called finite is.
float number(int exponent, int sign) { return static_cast<float>((sign < 0 ? -1 : 1) * std::ldexp(1.0, exponent)); }

RC_GTEST_PROP(SurelyFinite, HoldsOfWhatIsComputed, ()) {
  const auto any = [] { return number(*rc::gen::inRange(-126, 128), *rc::gen::element(-1, 1)); };
  const float self = any(), a = any(), b = any(), value = any();
  const auto one = [](const char* arg, float x) { return tensor(arg, x, x); };
  if (surely_finite("aten::addcdiv", {one("self", self), one("tensor1", a), one("tensor2", b)},
                    {scalar("value", value)})) {
    RC_ASSERT(std::isfinite(self + value * (a / b)));
    RC_ASSERT(std::isfinite(self + value * a / b));
  }
  if (surely_finite("aten::addcmul", {one("self", self), one("tensor1", a), one("tensor2", b)},
                    {scalar("value", value)}))
    RC_ASSERT(std::isfinite(self + value * a * b));
  if (surely_finite("aten::lerp", {one("self", self), one("end", a)}, {scalar("weight", value)})) {
    RC_ASSERT(std::isfinite(self + value * (a - self)));
    RC_ASSERT(std::isfinite(a - (a - self) * (1 - value)));
  }
  if (surely_finite("aten::div", {one("self", self), one("other", b)}, {}))
    RC_ASSERT(std::isfinite(self / b) && std::isfinite(self * (1 / b)));
}
#endif

}  // namespace
}  // namespace finitude::observe
