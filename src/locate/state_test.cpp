// Bad values that the program brings into parameters, optimizer state and buffers between two updates.
#include <gtest/gtest.h>

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
using testing::kNanValue;
using testing::Tensor;
using testing::TraceBuilder;
using testing::Values;

constexpr Values kOneAndInf{.pos_inf = 1, .min = 1, .max = 1};  // what looks like a mask

struct Loaded : TraceBuilder {
  Tensor source, state, y = storage();
  OpId copy;
  explicit Loaded(Origin from, Origin to, const Values& values, Phase when = Phase::kForward)
      : source(storage(from)), state(storage(to)) {
    phase = when;
    copy = op("aten::copy_").inout(state, kClean).in(source, values, "src").out(state, values).end();
    phase = Phase::kForward;
    op("aten::mul").in(state, values, "other").out(y, values);
    sink("loss", y, values);
  }
};

TEST(State, OutsideCopyIntoStateIsTheBirth) {
  for (const Origin to : {Origin::kParameter, Origin::kOptimizerState, Origin::kBuffer}) {
    Loaded b(Origin::kUnknown, to, kNanValue);
    const Located found = locate(b.trace);
    ASSERT_EQ(found.births.size(), 1u);
    EXPECT_EQ(found.births[0].op, b.copy);
    EXPECT_EQ(found.births[0].kind, "state");
    EXPECT_EQ(found.births[0].storage, b.state.storage);
  }
}

TEST(State, MasksExistInBuffersNotInParameters) {
  for (const Origin to : {Origin::kParameter, Origin::kOptimizerState}) {
    Loaded b(Origin::kUnknown, to, kOneAndInf);
    const Located found = locate(b.trace);
    ASSERT_EQ(found.births.size(), 1u);
    EXPECT_EQ(found.births[0].op, b.copy);
  }
  Loaded b(Origin::kUnknown, Origin::kBuffer, kOneAndInf);
  for (const Birth& birth : locate(b.trace).births) EXPECT_NE(birth.op, b.copy);
}

TEST(State, BufferWrittenInForwardKeepsItsOrigin) {
  Loaded b(Origin::kUnknown, Origin::kBuffer, kNanValue);
  b.trace.stacks.emplace_back().module = "Bank";
  b.trace.ops[b.copy].stack = 0;
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].kind, "data");
}

TEST(State, ABatchAndOtherStateKeepTheirOrigin) {
  for (const auto& [from, kind] : {std::pair(Origin::kBatch, "data"), std::pair(Origin::kParameter, "state")}) {
    Loaded b(from, Origin::kParameter, kNanValue);
    const Located found = locate(b.trace);
    ASSERT_EQ(found.births.size(), 1u);
    EXPECT_EQ(found.births[0].op, kNone);
    EXPECT_EQ(found.births[0].kind, kind);
    EXPECT_EQ(found.births[0].storage, b.source.storage);
  }
}

TEST(State, WhatTheOptimizerMovesIsNotTheScripts) {
  Loaded b(Origin::kUnknown, Origin::kParameter, kNanValue, Phase::kOptimizer);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, kNone);
}

TEST(State, ArithmeticBeforeTheWriteIsTheBirth) {
  TraceBuilder b;
  const Tensor x = b.storage(), made = b.storage(), state = b.storage(Origin::kParameter);
  const OpId log = b.op("aten::log").in(x).out(made, kNanValue).end();
  b.op("aten::copy_").inout(state, kClean).in(made, kNanValue, "src").out(state, kNanValue);
  b.sink("parameter", state, kNanValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, log);
  EXPECT_EQ(found.births[0].kind, "forward");
}

TEST(State, NumberFilledIntoParameterIsItsBirth) {
  TraceBuilder b;
  const Tensor state = b.storage(Origin::kParameter);
  const OpId fill = b.op("aten::fill_").inout(state, kClean).number(INFINITY).out(state, kInfValue).end();
  b.sink("parameter", state, kInfValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, fill);
  EXPECT_EQ(found.births[0].kind, "state");
}

}  // namespace
}  // namespace finitude::locate
