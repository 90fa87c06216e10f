#include "explain/made.h"

#include <gtest/gtest.h>

#include "locate/testing.h"

namespace finitude::explain {
namespace {

using locate::testing::Tensor;
using LocateBuilder = locate::testing::TraceBuilder;

std::optional<Made> made(const LocateBuilder& b, const Tensor& t) {
  return made_of(b.trace, locate::testing::use_of(t, locate::testing::kClean, ""));
}

TEST(Made, MemoryThatNobodyWrote) {
  LocateBuilder b;
  const Tensor raw = b.storage(), copy = b.storage(), other = b.storage();
  const auto empty = b.op("aten::empty").out(raw).alloc().end();
  b.op("aten::clone").in(raw).out(copy);
  EXPECT_EQ(made(b, copy)->op, empty);
  EXPECT_TRUE(made(b, copy)->unwritten);
  EXPECT_FALSE(made(b, other));
}

TEST(Made, WrittenSince) {
  LocateBuilder b;
  const Tensor raw = b.storage();
  b.op("aten::empty").out(raw).alloc();
  const auto fill = b.op("aten::normal_").inout(raw, locate::testing::kClean).out(raw).end();
  EXPECT_EQ(made(b, raw)->op, fill);
  EXPECT_FALSE(made(b, raw)->unwritten);
  EXPECT_EQ(allocation_of(b.trace, locate::testing::use_of(raw, locate::testing::kClean, "")), fill - 1);
}

}  // namespace
}  // namespace finitude::explain
