#include "incident/growth.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace finitude::incident {
namespace {

using sense::DType;

TEST(Growth, TheParameterThatHasGrownMostIsNamed) {
  std::vector<Weight> weights = {{"a", DType::kFloat32, 2, 500}, {"b", DType::kFloat32, 1, 2000}};
  const Growth growth = growth_of(weights, 2, false);
  EXPECT_EQ(growth.factor, 2000.0);
  EXPECT_EQ(growth.text, "grown 2e+03-fold since step 0 (b: 1 to 2e+03)");
  weights[1].now = 50;  // below 100-fold, as is the other
  weights[0].now = 150;
  EXPECT_EQ(growth_of(weights, 2, false).text, "");
  EXPECT_EQ(growth_of(weights, 2, true).text, "grown 75-fold since step 0 (a: 2 to 150)");
}

TEST(Growth, OneThatBeganTinyOrHasNothingFiniteLeftHasNotGrown) {
  EXPECT_EQ(growth_of({{"a", DType::kFloat32, 1e-6, 1}}, 1, false).text, "");  // below what others began with
  std::vector<Weight> weights = {{"a", DType::kFloat32, 1, 0}};
  EXPECT_EQ(growth_of(weights, 1, false).factor, 0.0);
  weights[0].is_all_bad = true;
  EXPECT_FALSE(growth_of(weights, 1, false).factor);
  EXPECT_FALSE(growth_of({{"a", DType::kFloat32, {}, 5}, {"b", DType::kFloat32, 5, {}}}, 5, false).factor);
}

TEST(Growth, ExtremesAreOfTheDtype) {
  EXPECT_EQ(extremes_of({{"w", DType::kFloat16, {}, 40000}}), "w reaches 4e+04, 0.71 bits below the limit of float16");
  EXPECT_EQ(extremes_of({{"w", DType::kFloat32, {}, 40000}, {"v", DType::kFloat16, {}, 1000}}), "");
  EXPECT_EQ(extremes_of({{"w", DType::kFloat32, {}, 1e-40}}), "w is subnormal in float32, 1e-40 at most");
  EXPECT_EQ(extremes_of({{"w", DType::kFloat8E4M3FN, {}, 448}, {"n", DType::kOther, {}, 1e300}}), "");
  EXPECT_EQ(extremes_of({{"a", DType::kBFloat16, {}, 1e37}, {"b", DType::kFloat32, {}, 1e38}}),
            "b reaches 1e+38, 1.8 bits below the limit of float32");
}

TEST(Growth, WeightsOfNoUseAreNamedWhateverTheyBeganWith) {
  EXPECT_EQ(beyond_use({{"a", DType::kFloat32, 1e13, 1e13}, {"b", DType::kFloat32, 1, 1}}), "a reaches 1e+13");
  EXPECT_EQ(beyond_use({{"a", DType::kFloat32, {}, 9e5}, {"b", DType::kFloat32, {}, {}}}), "");
  EXPECT_EQ(beyond_use({}), "");
}

}  // namespace
}  // namespace finitude::incident
