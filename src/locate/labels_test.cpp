// What is a birth, and what only passes on.
#include <gtest/gtest.h>

#include "locate/slice.h"
#include "locate/testing.h"

namespace finitude::locate {
namespace {

using record::Origin;
using testing::kClean;
using testing::kMinusInfValue;
using testing::kNanValue;
using testing::Tensor;
using testing::TraceBuilder;

// logsumexp of a row that is all -Inf: the logarithm of a sum of zeros. Where that row was bad already, its part makes
// nothing new.
Located log_of_sum(TraceBuilder& b, bool given) {
  const Tensor x = b.storage(Origin::kBatch), h = b.storage(), sum = b.storage(), out = b.storage();
  b.op("aten::log").in(x).out(h, given ? kMinusInfValue : kClean).end();
  {
    auto outer = b.op("aten::logsumexp");
    outer.in(h, given ? kMinusInfValue : kClean).out(out, kMinusInfValue);
    b.op("aten::exp").in(h, given ? kMinusInfValue : kClean).out(sum).end();
    b.op("aten::log_").in(sum).out(out, kMinusInfValue).end();
  }
  b.sink("loss", out, kMinusInfValue);
  return locate(b.trace);
}

TEST(Labels, PartOfAnOperatorGivenBadValues) {
  TraceBuilder b;
  const Located found = log_of_sum(b, true);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(b.trace.ops[found.births[0].op].name, "aten::log");
  TraceBuilder sound;
  EXPECT_EQ(sound.trace.ops[log_of_sum(sound, false).births.at(0).op].name, "aten::log_");
}

// NaN marks what is missing, and nanmean leaves it out: of a row with nothing else it divides by a count of 0.
TEST(Labels, MeanOfNothingButNanIsABirth) {
  for (const char* name : {"aten::nanmean", "aten::mean"}) {
    TraceBuilder b;
    const Tensor x = b.storage(Origin::kBatch), sum = b.storage(), count = b.storage(), out = b.storage();
    {
      auto outer = b.op(name);
      outer.in(x, kNanValue).out(out, kNanValue);
      b.op("aten::nansum").in(x, kNanValue).out(sum).end();
      b.op("aten::div").in(sum).in(count).out(out, kNanValue).end();
    }
    b.sink("loss", out, kNanValue);
    const Located found = locate(b.trace);
    ASSERT_EQ(found.births.size(), 1u) << name;
    EXPECT_EQ(found.births[0].kind, std::string(name) == "aten::nanmean" ? "forward" : "data");
  }
}

}  // namespace
}  // namespace finitude::locate
