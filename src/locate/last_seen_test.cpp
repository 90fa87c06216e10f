#include "locate/last_seen.h"

#include <gtest/gtest.h>

#include "locate/slice.h"
#include "locate/testing.h"

namespace finitude::locate {
namespace {

using testing::kClean;
using testing::kMinusInfValue;
using testing::kNanValue;
using testing::TraceBuilder;

TEST(LastSeen, WhatTheLastOperatorGave) {
  TraceBuilder b;
  const auto x = b.storage(), y = b.storage(), z = b.storage();
  const auto birth = b.op("aten::log").in(x).out(y, kNanValue).end();
  b.op("aten::neg").in(y, kNanValue).out(z, kNanValue);
  b.op("aten::relu").in(x).out(b.storage());
  ASSERT_TRUE(sink_last_seen(&b.trace));
  EXPECT_EQ(b.trace.sinks.at(0).value.storage, z.storage);
  EXPECT_EQ(locate(b.trace).births.at(0).op, birth);
}

TEST(LastSeen, OfACheckWhatItWasGiven) {
  TraceBuilder b;
  const auto x = b.storage(), y = b.storage();
  b.op("aten::div").in(x).out(y, kNanValue);
  {
    auto check = b.op("aten::isfinite");
    check.in(y, kNanValue);
    b.op("aten::abs").in(y, kNanValue).out(b.storage(), kNanValue);
  }
  ASSERT_TRUE(sink_last_seen(&b.trace));
  EXPECT_EQ(b.trace.sinks.at(0).value.storage, y.storage);
}

TEST(LastSeen, WhatARankGaveOthersButNotWhatItReceived) {
  TraceBuilder b;
  const auto x = b.storage(), y = b.storage(), buffer = b.storage();
  b.op("c10d::recv_").in(buffer, kNanValue, "tensors").out(buffer);
  const auto birth = b.op("aten::sqrt_backward").in(x).out(y, kNanValue).end();
  EXPECT_FALSE(sink_given_away(&b.trace));
  b.op("c10d::send").in(y, kNanValue, "tensors");
  ASSERT_TRUE(sink_given_away(&b.trace));
  ASSERT_EQ(b.trace.sinks.size(), 1u);
  EXPECT_EQ(locate(b.trace).births.at(0).op, birth);
}

TEST(LastSeen, AMaskComesLast) {
  TraceBuilder b;
  const auto x = b.storage(), y = b.storage(), mask = b.storage();
  b.op("aten::div").in(x).out(y, kNanValue);
  b.op("aten::full").out(mask, kMinusInfValue);
  ASSERT_TRUE(sink_last_seen(&b.trace));
  EXPECT_EQ(b.trace.sinks.at(0).value.storage, y.storage);
  TraceBuilder clean;
  clean.op("aten::neg").in(clean.storage(), kClean).out(clean.storage());
  EXPECT_FALSE(sink_last_seen(&clean.trace));
}

TEST(LastSeen, MemoryWrittenBeforeReadIsNoValue) {
  TraceBuilder b;
  const auto memory = b.storage();
  {
    auto empty = b.op("aten::empty");
    empty.out(memory, kNanValue).alloc();
    b.op("aten::fill_").inout(memory, kNanValue).out(memory, kNanValue);  // as in deterministic mode
  }
  b.op("aten::detach").in(memory, kNanValue).out(memory, kNanValue).view().end();
  b.op("aten::empty_like").in(memory, kNanValue).out(b.storage()).end();
  b.op("aten::uniform_").inout(memory, kNanValue).out(memory).end();
  EXPECT_FALSE(sink_last_seen(&b.trace));
  const auto y = b.storage();
  b.op("aten::log").in(memory).out(y, kNanValue).end();
  b.op("aten::view").in(y, kNanValue).out(y, kNanValue).view().end();
  ASSERT_TRUE(sink_last_seen(&b.trace));
  EXPECT_EQ(b.trace.sinks.at(0).value.storage, y.storage);
}

TEST(LastSeen, MemoryThatIsReadUnwrittenIsOne) {
  TraceBuilder b;
  const auto memory = b.storage();
  b.op("aten::empty").out(memory, kNanValue).alloc().end();
  b.op("aten::isnan").in(memory, kNanValue).out(b.storage()).end();
  ASSERT_TRUE(sink_last_seen(&b.trace));
  EXPECT_EQ(b.trace.sinks.at(0).value.storage, memory.storage);
}

}  // namespace
}  // namespace finitude::locate
