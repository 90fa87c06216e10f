// What took a bad value in and gave finite ones.
#include "locate/births.h"

#include <gtest/gtest.h>

#include "locate/slice.h"
#include "locate/testing.h"

namespace finitude::locate {
namespace {

using record::OpId;
using testing::kClean;
using testing::kInfValue;
using testing::kMinusInfValue;
using testing::Tensor;
using testing::TraceBuilder;
using testing::Values;

// zeros_like(e) is finite whatever e holds: it hides nothing.
TEST(Births, OpReadingOnlyTheShapeIsNoAbsorber) {
  TraceBuilder b;
  const Tensor x = b.storage(), e = b.storage(), z = b.storage(), w = b.storage();
  b.unary("aten::exp", x, kClean, e, kInfValue);
  b.unary("aten::zeros_like", e, kInfValue, z, kClean);
  const OpId clamp = b.unary("aten::clamp_max", e, kInfValue, w, kClean);
  b.sink("loss", w, kClean);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.absorbed.size(), 1u);
  EXPECT_EQ(found.absorbed[0].absorbed_by, clamp);
}

// Inside logsumexp a select makes 0 of the infinite maximum, and logsumexp gives -Inf all the same. The next one gives
// a finite value: that one took it in.
TEST(Births, PartOfAnOperatorThatStaysInfiniteHidesNothing) {
  TraceBuilder b;
  const Tensor x = b.storage(), e = b.storage(), top = b.storage(), s = b.storage(), w = b.storage();
  b.unary("aten::log", x, kClean, e, kMinusInfValue);
  {
    auto call = b.op("aten::logsumexp");
    call.in(e, kMinusInfValue);
    b.unary("aten::masked_fill", e, kMinusInfValue, top, kClean);
    call.out(s, kMinusInfValue);
  }
  const OpId exp = b.unary("aten::exp", s, kMinusInfValue, w, kClean);
  b.sink("loss", w, kClean);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.absorbed.size(), 1u);
  EXPECT_EQ(found.absorbed[0].absorbed_by, exp);
}

// logsumexp of finite numbers and -Inf: its largest element is finite, and chooses nothing away.
TEST(Births, ASumOfExponentialsTakesInInfinitiesAsAWhole) {
  TraceBuilder b;
  const Tensor x = b.storage(), e = b.storage(), top = b.storage(), w = b.storage();
  b.unary("aten::log", x, kClean, e, kMinusInfValue);
  OpId sum;
  {
    auto call = b.op("aten::logsumexp");
    call.in(e, kMinusInfValue);
    b.unary("aten::amax", e, kMinusInfValue, top, kClean);
    call.out(w, kClean);
    sum = call.id();
  }
  b.sink("loss", w, kClean);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.absorbed.size(), 1u);
  EXPECT_EQ(found.absorbed[0].absorbed_by, sum);
}

}  // namespace
}  // namespace finitude::locate
