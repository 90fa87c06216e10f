#include "record/late_writes.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <utility>

#include "record/event_sink.h"

namespace finitude::record {
namespace {

int places[4];

SeenTensor part(std::uint64_t nan = 0, std::int64_t begin = 0, std::int64_t end = 16, int at = 0) {
  SeenTensor seen;
  seen.memory = &places[at];
  seen.use.begin = begin;
  seen.use.end = end;
  seen.use.dtype = sense::DType::kFloat32;
  seen.use.shape = {(end - begin) / 4};
  seen.use.health.numel = static_cast<std::uint64_t>(end - begin) / 4;
  seen.use.health.nan = nan;
  if (nan != 0) seen.use.first_bad = 0;
  return seen;
}

class LateWritesTest : public ::testing::Test {
 protected:
  LateWritesTest() { sink_.start(); }

  EventSink::Token begin(const std::string& name, std::initializer_list<SeenTensor> inputs, OpId parent = kNone) {
    BeginOp op;
    op.op.name = name;
    op.op.parent = parent;
    op.generation = sink_.generation();
    op.inputs = inputs;
    return sink_.begin(std::move(op));
  }
  void end(EventSink::Token token, std::initializer_list<SeenTensor> outputs, bool is_view = false) {
    EndOp op;
    op.outputs = outputs;
    op.is_view = is_view;
    sink_.end(token, std::move(op));
  }
  void run(const std::string& name, std::initializer_list<SeenTensor> inputs,
           std::initializer_list<SeenTensor> outputs) {
    end(begin(name, inputs), outputs);
  }
  EventSink::Token begin_by_program(const std::string& name, std::initializer_list<SeenTensor> inputs) {
    Stack stack;
    stack.frames.push_back({"train.py", 1, "main"});
    BeginOp op;
    op.op.name = name;
    op.op.stack = sink_.stack(std::move(stack));
    op.generation = sink_.generation();
    op.inputs = inputs;
    return sink_.begin(std::move(op));
  }
  void run_by_program(const std::string& name, std::initializer_list<SeenTensor> inputs,
                      std::initializer_list<SeenTensor> outputs) {
    end(begin_by_program(name, inputs), outputs);
  }
  std::uint64_t nan_of(const Trace& trace, OpId op) {
    std::uint64_t nan = 0;
    for (const TensorUse& out : trace.ops[op].outputs) nan += out.health.nan;
    return nan;
  }

  EventSink sink_;
};

TEST_F(LateWritesTest, TheNextReadShowsWhatTheCollectiveWrote) {
  run("c10d::allreduce_", {part()}, {part()});
  run("aten::mul", {part(4)}, {part(4, 0, 16, 1)});
  const Trace trace = sink_.take();
  EXPECT_EQ(nan_of(trace, 0), 4u);
  EXPECT_EQ(trace.ops[0].outputs[0].first_bad, 0);
}

TEST_F(LateWritesTest, AnOpThatCalledItHandsItOver) {
  const auto outer = begin("mine::shared", {part(0, 0, 16, 1)});
  end(begin("c10d::allreduce_", {part()}, outer.op), {part()});
  end(outer, {part(4)});
  EXPECT_EQ(nan_of(sink_.take(), 1), 4u);
}

TEST_F(LateWritesTest, WaitPassesOnWhatItsCallWrote) {
  run("_c10d_functional::all_reduce", {part(0, 0, 16, 1)}, {part()});
  run("_c10d_functional::wait_tensor", {part()}, {part(4)});
  const Trace trace = sink_.take();
  EXPECT_EQ(nan_of(trace, 0), 4u);
  EXPECT_EQ(trace.ops[1].inputs[0].health.nan, 4u);  // so that it made nothing of its own
}

// The memory that it is to write holds a NaN from before until the values of the others come, after the op that called
// it has ended.
TEST_F(LateWritesTest, WhatLayThereIsNotTheCallersEither) {
  for (const std::uint64_t comes : {0, 3}) {
    sink_.start();
    const auto outer = begin("_c10d_functional::all_to_all_single", {part(0, 0, 16, 1)});
    SeenTensor output = part(1);
    output.use.arg = "output";
    end(begin("c10d::alltoall_base_", {output, part(0, 0, 16, 1)}, outer.op), {});
    end(outer, {part(1)});
    run("_c10d_functional::_wrap_tensor_autograd", {part(1)}, {});
    run("_c10d_functional::wait_tensor", {part(1)}, {part(comes)});
    const Trace trace = sink_.take();
    EXPECT_EQ(nan_of(trace, 0), comes);
    EXPECT_EQ(nan_of(trace, 1), comes);
    EXPECT_EQ(trace.ops[2].inputs[0].health.nan, 0u);
    EXPECT_EQ(trace.ops[3].inputs[0].health.nan, comes);
  }
}

TEST_F(LateWritesTest, ASinkIsALookToo) {
  run("c10d::allreduce_", {part()}, {part()});
  sink_.add_sink("gradient", "w", part(4), 0);
  EXPECT_EQ(nan_of(sink_.take(), 0), 4u);
}

// A bucket of DDP that was mostly zeros, of which a gradient that is read is all NaN.
TEST_F(LateWritesTest, CountsOfAPartStayWithinTheWhole) {
  SeenTensor bucket = part();
  bucket.use.health.zero = 3;
  bucket.use.health.subnormal = 1;
  run("c10d::allreduce_", {bucket}, {bucket});
  run("aten::mul", {part(2, 0, 8)}, {part(2, 0, 8, 1)});
  const Trace trace = sink_.take();
  const sense::Health& h = trace.ops[0].outputs[0].health;
  EXPECT_EQ(h.nan, 2u);
  EXPECT_LE(h.nan + h.pos_inf + h.neg_inf + h.zero + h.subnormal, h.numel);
}

TEST_F(LateWritesTest, WhatIsReceivedIsAnInputOnly) {
  run("c10d::recv_", {part()}, {});
  run("aten::mul", {part(4)}, {});
  const Trace trace = sink_.take();
  ASSERT_EQ(trace.ops[0].outputs.size(), 1u);
  EXPECT_EQ(nan_of(trace, 0), 4u);
  EXPECT_EQ(trace.ops[0].inputs[0].health.nan, 0u);
}

TEST_F(LateWritesTest, EarlierContentOfReceivedTensorsDoesNotCount) {
  run("aten::empty_like", {}, {part(2)});
  run("c10d::recv_", {part(2)}, {});
  run("aten::mul", {part(4)}, {});
  const Trace trace = sink_.take();
  EXPECT_EQ(nan_of(trace, 1), 4u);
  EXPECT_EQ(trace.ops[1].inputs[0].health.nan, 0u);
}

TEST_F(LateWritesTest, NorIsWhatLayInAnOutput) {
  SeenTensor one = part(2), other = part(2, 0, 16, 2);
  one.use.arg = other.use.arg = "output_tensor";
  run("c10d::_reduce_scatter_base_", {one, part(0, 0, 16, 1)}, {part(2)});         // not over yet
  run("c10d::_allgather_base_", {other, part(0, 0, 16, 1)}, {part(3, 0, 16, 2)});  // over
  const Trace trace = sink_.take();
  EXPECT_EQ(nan_of(trace, 0), 0u);
  EXPECT_EQ(trace.ops[0].inputs[0].health.nan, 0u);
  EXPECT_EQ(nan_of(trace, 1), 3u);
}

TEST_F(LateWritesTest, OfWhatIsReducedInPlaceItIs) {
  run("c10d::allreduce_", {part(2)}, {part(2)});
  const Trace trace = sink_.take();
  EXPECT_EQ(trace.ops[0].inputs[0].health.nan, 2u);
  EXPECT_EQ(nan_of(trace, 0), 2u);
}

// gloo's all_gather: on a thread of its own, out of a buffer of its own, into the parts that it was given.
TEST_F(LateWritesTest, WhatABackendCopiesIsTheCollectives) {
  for (const bool ended : {true, false}) {
    sink_.start();
    run_by_program("aten::log", {part(0, 0, 16, 1)}, {part(2, 0, 16, 1)});
    const auto call = begin_by_program("c10d::allgather_", {part(0, 0, 16), part(0, 16, 32), part(2, 0, 16, 1)});
    if (ended) end(call, {part(0, 0, 16), part(0, 16, 32)});
    run("aten::empty", {}, {part(0, 0, 32, 2)});
    end(begin("aten::select", {part(3, 0, 32, 2)}), {part(3, 16, 32, 2)}, true);
    SeenTensor target = part(0, 16, 32);
    target.use.written = true;
    run("aten::copy_", {target, part(3, 16, 32, 2)}, {part(3, 16, 32)});
    if (!ended) end(call, {part(0, 0, 16), part(3, 16, 32)});
    const Trace trace = sink_.take();
    EXPECT_EQ(nan_of(trace, 1), 3u);
    EXPECT_TRUE(trace.ops[4].inputs.empty() && trace.ops[4].outputs.empty());
  }
}

// gloo's reduce_scatter: reduces a copy of what it was given, and hands over a part of that when it is waited for.
TEST_F(LateWritesTest, CopiesMadeByWaitAreNoProgramWrites) {
  SeenTensor output = part(0, 0, 8);
  output.use.arg = "output_tensor";
  const auto call = begin_by_program("c10d::_reduce_scatter_base_", {output, part(0, 0, 16, 1)});
  end(begin("aten::clone", {part(0, 0, 16, 1)}, call.op), {part(0, 0, 16, 2)});
  end(call, {output});
  end(begin_by_program("aten::slice", {part(2, 0, 16, 2)}), {part(2, 8, 16, 2)}, true);
  SeenTensor target = part(0, 0, 8);
  target.use.written = true;
  run_by_program("aten::copy_", {target, part(2, 8, 16, 2)}, {part(2, 0, 8)});
  run_by_program("aten::copy_", {target, part(0, 0, 8, 3)}, {part(1, 0, 8)});
  const Trace trace = sink_.take();
  EXPECT_EQ(nan_of(trace, 0), 2u);
  EXPECT_TRUE(trace.ops[1].outputs.empty() && trace.ops[3].outputs.empty());
  EXPECT_EQ(nan_of(trace, 4), 1u);
}

// A bucket is filled with gradients by DDP, with no line of the program on the stack.
TEST_F(LateWritesTest, CopiesFromProgramMemoryAreNot) {
  run_by_program("aten::log", {part(0, 0, 16, 1)}, {part(2, 0, 16, 1)});
  run("c10d::allreduce_", {part()}, {part()});
  SeenTensor target = part();
  target.use.written = true;
  run("aten::copy_", {target, part(2, 0, 16, 1)}, {part(2)});
  const Trace trace = sink_.take();
  EXPECT_EQ(nan_of(trace, 1), 0u);
  EXPECT_EQ(nan_of(trace, 2), 2u);
}

TEST_F(LateWritesTest, PartsOfABucketAreAddedToIt) {
  run("c10d::allreduce_", {part()}, {part()});
  run("aten::div", {part(0, 0, 8)}, {});
  run("aten::div", {part(2, 8, 16)}, {});
  run("aten::add", {part(2, 8, 16)}, {});
  EXPECT_EQ(nan_of(sink_.take(), 0), 2u);
}

TEST_F(LateWritesTest, AWaitWritesNothing) {
  run("_c10d_functional::all_reduce", {part(0, 0, 16, 1)}, {part()});
  run("_c10d_functional::wait_tensor", {part()}, {part(4)});
  EXPECT_EQ(nan_of(sink_.take(), 0), 4u);
}

TEST_F(LateWritesTest, AViewIsALook) {
  run("c10d::allreduce_", {part()}, {part()});
  end(begin("aten::view", {part()}), {part(4)}, true);
  EXPECT_EQ(nan_of(sink_.take(), 0), 4u);
}

TEST_F(LateWritesTest, WhatAnotherOpWroteIsNotTheCollectives) {
  run("c10d::allreduce_", {part()}, {part()});
  SeenTensor written = part();
  written.use.written = true;
  run("aten::log_", {written}, {part(4)});
  run("aten::mul", {part(4)}, {});
  EXPECT_EQ(nan_of(sink_.take(), 0), 0u);
}

TEST_F(LateWritesTest, WhatLiesBesideItIsNotTheCollectives) {
  run("c10d::allreduce_", {part(0, 0, 8)}, {part(0, 0, 8)});
  run("aten::mul", {part(1, 0, 16)}, {});
  run("aten::mul", {part(1, 8, 16)}, {});
  run("aten::mul", {part(1, 0, 8, 2)}, {});
  EXPECT_EQ(nan_of(sink_.take(), 0), 0u);
}

TEST_F(LateWritesTest, TheLastOfTwoIsMeant) {
  run("c10d::allreduce_", {part()}, {part()});
  run("c10d::allreduce_", {part()}, {part()});
  run("aten::mul", {part(4)}, {});
  const Trace trace = sink_.take();
  EXPECT_EQ(nan_of(trace, 0), 0u);
  EXPECT_EQ(nan_of(trace, 1), 4u);
}

TEST_F(LateWritesTest, EveryTraceIsItsOwn) {
  run("c10d::allreduce_", {part()}, {part()});
  sink_.clear();
  run("aten::sub", {part()}, {part(0, 0, 16, 1)});
  run("aten::mul", {part(4)}, {});
  EXPECT_EQ(nan_of(sink_.take(), 0), 0u);
}

}  // namespace
}  // namespace finitude::record
