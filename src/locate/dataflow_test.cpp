// Memory: views, slices, overwriting, nesting, lists, memory nobody wrote.
#include <gtest/gtest.h>

#include "locate/slice.h"
#include "locate/testing.h"

namespace finitude::locate {
namespace {

using record::kNone;
using record::OpId;
using record::Origin;
using testing::kClean;
using testing::kInfValue;
using testing::kNanValue;
using testing::Tensor;
using testing::TraceBuilder;
using testing::Values;

Birth only_birth(const record::Trace& trace) {
  const Located found = locate(trace);
  EXPECT_EQ(found.births.size(), 1u);
  return found.births.empty() ? Birth{} : found.births[0];
}

TEST(Dataflow, ViewsWriteNothing) {
  TraceBuilder b;
  const Tensor x = b.storage(), y = b.storage(Origin::kUnknown, {8}), loss = b.storage();
  const OpId log = b.op("aten::log").in(x).out(y, kNanValue).end();
  b.op("aten::view").in(y, kNanValue).out(y.as({2, 4}), kNanValue).view();
  b.op("aten::dropout").in(y, kNanValue).out(y, kNanValue);  // gives its input back, not marked as a view
  b.op("aten::sum").in(y.part(2, 3), kNanValue).out(loss, kNanValue);
  b.sink("loss", loss, kNanValue);
  const Birth birth = only_birth(b.trace);
  EXPECT_EQ(birth.op, log);
  EXPECT_EQ(birth.path.size(), 1u);
}

TEST(Dataflow, AnInPlaceBirthAndAnOverwrittenOne) {
  TraceBuilder b;
  const Tensor x = b.storage(), y = b.storage();
  const OpId first = b.op("aten::log").in(x).out(y, kNanValue).end();
  b.op("aten::copy_").inout(y, kNanValue).in(x, kClean, "src").out(y);
  const OpId second = b.op("aten::sqrt_").inout(y, kClean).out(y, kNanValue).end();
  b.op("aten::add_").inout(y, kNanValue).out(y, kNanValue);
  b.sink("loss", y, kNanValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, second);
  ASSERT_EQ(found.absorbed.size(), 1u);
  EXPECT_EQ(found.absorbed[0].op, first);
}

TEST(Dataflow, PartialWritesAreFollowedPieceByPiece) {
  TraceBuilder b;
  const Tensor x = b.storage(), buffer = b.storage(Origin::kUnknown, {12}), loss = b.storage();
  b.op("aten::zeros").out(buffer);
  const OpId low = b.op("aten::log").in(x).out(b.storage(), kNanValue).end();
  b.op("aten::copy_")
      .inout(buffer.part(0, 4), kClean)
      .in(Tensor{b.trace.ops[low].outputs[0].storage}, kNanValue, "src")
      .out(buffer.part(0, 4), kNanValue);
  b.op("aten::copy_").inout(buffer.part(4, 4), kClean).in(x, kClean, "src").out(buffer.part(4, 4));
  const OpId high = b.op("aten::index_put_")
                        .inout(buffer.part(8, 4), kClean)
                        .in(x, kClean, "values")
                        .out(buffer.part(8, 4), kInfValue)
                        .end();
  EXPECT_TRUE(locate(b.trace).births.empty());
  // The clean middle, the low part, then everything.
  b.sink("gradient", buffer.part(4, 4), kClean);
  b.sink("gradient", buffer.part(2, 3), kNanValue);
  EXPECT_EQ(only_birth(b.trace).op, low);
  b.trace.sinks.clear();
  b.op("aten::sum").in(buffer, {.nan = 4, .pos_inf = 1}).out(loss, kNanValue);
  b.sink("loss", loss, kNanValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 2u);
  EXPECT_EQ(found.births[0].op, low);
  EXPECT_EQ(found.births[1].op, high);
}

TEST(Dataflow, SparseColumnsDoNotHideMemoryBetween) {
  TraceBuilder b;
  const Tensor x = b.storage(), m = b.storage(Origin::kUnknown, {3, 4}), loss = b.storage();
  b.op("aten::zeros").out(m);
  const OpId log = b.op("aten::log_").inout(m.column(1), kClean).out(m.column(1), kNanValue).end();
  b.op("aten::mul_").inout(m.column(2), kClean).out(m.column(2));
  b.op("aten::sum").in(m, {.nan = 3}).out(loss, kNanValue);
  b.sink("loss", loss, kNanValue);
  EXPECT_EQ(only_birth(b.trace).op, log);
  // The same column written again, clean: what is bad later comes from the second birth alone.
  b.trace.sinks.clear();
  b.op("aten::zero_").inout(m.column(1), kNanValue).out(m.column(1));
  const OpId sqrt = b.op("aten::sqrt_").inout(m.column(3), kClean).out(m.column(3), kNanValue).end();
  b.op("aten::sum").in(m, kNanValue).out(loss, kNanValue);
  b.sink("loss", loss, kNanValue);
  EXPECT_EQ(only_birth(b.trace).op, sqrt);
}

TEST(Dataflow, AColumnWrittenTwiceHoldsTheSecondValue) {
  TraceBuilder b;
  const Tensor m = b.storage(Origin::kUnknown, {3, 4}), x = b.storage(), bad = b.storage(), loss = b.storage();
  b.op("aten::zeros").out(m);
  const OpId first = b.op("aten::log_").inout(m.column(1), kClean).out(m.column(1), kNanValue).end();
  const OpId second = b.op("aten::log").in(x).out(bad, kNanValue).end();
  b.op("aten::copy_").inout(m.column(1), kNanValue).in(bad, kNanValue, "src").out(m.column(1), kNanValue);
  b.op("aten::sum").in(m, kNanValue).out(loss, kNanValue);
  b.sink("loss", loss, kNanValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, second);
  ASSERT_EQ(found.absorbed.size(), 1u);
  EXPECT_EQ(found.absorbed[0].op, first);
}

TEST(Dataflow, EarlierContentCountsBesideWrites) {
  TraceBuilder b;
  const Tensor x = b.storage(Origin::kBatch, {8}), loss = b.storage();
  b.op("aten::isnan").in(x, kNanValue);
  const OpId log = b.op("aten::log_").inout(x.part(4, 4), kClean).out(x.part(4, 4), kNanValue).end();
  b.op("aten::sum").in(x, {.nan = 2}).out(loss, kNanValue);
  b.sink("loss", loss, kNanValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 2u);
  EXPECT_EQ(found.births[0].kind, "data");
  EXPECT_EQ(found.births[1].op, log);
}

TEST(Dataflow, ValueIsExplainedByItsKindOnly) {
  TraceBuilder b;
  const Tensor x = b.storage(), i = b.storage(), n = b.storage(), both = b.storage(Origin::kUnknown, {8}),
               out = b.storage();
  const OpId exp = b.op("aten::exp").in(x).out(i, kInfValue).end();
  b.op("aten::sqrt").in(x).out(n, kNanValue);
  b.op("aten::cat").in(i, kInfValue, "tensors").in(n, kNanValue, "tensors").out(both, {.nan = 1, .pos_inf = 1});
  b.op("aten::index_select").in(both, {.nan = 1, .pos_inf = 1}).out(out, kInfValue);
  b.sink("loss", out, kInfValue);
  // cat holds both kinds, so its own sources are both followed; index_select took the infinity.
  const Located found = locate(b.trace);
  ASSERT_FALSE(found.births.empty());
  EXPECT_EQ(found.births[0].op, exp);

  TraceBuilder c;
  const Tensor a = c.storage(), d = c.storage(), w = c.storage();
  c.op("aten::exp").in(x).out(a, kInfValue);
  const OpId sqrt = c.op("aten::sqrt").in(x).out(d, kNanValue).end();
  c.op("aten::where").in(a, kInfValue).in(d, kNanValue, "other").out(w, kNanValue);
  c.sink("loss", w, kNanValue);
  EXPECT_EQ(only_birth(c.trace).op, sqrt);
}

TEST(Dataflow, EmptyThenFilledIsNoBirth) {
  TraceBuilder b;
  const Tensor x = b.storage(), e = b.storage(), n = b.storage(), s = b.storage();
  b.op("aten::empty").out(e, {.nan = 4}).alloc();
  b.op("aten::copy_").inout(e, {.nan = 4}).in(x, kClean, "src").out(e);
  b.op("aten::empty").out(n, {.nan = 4}).alloc();
  b.op("aten::normal_").inout(n, {.nan = 4}).out(n);
  b.op("aten::add").in(e).in(n, kClean, "other").inout(s, kNanValue, "out").out(s);
  b.sink("loss", s, kClean);
  const Located found = locate(b.trace);
  EXPECT_TRUE(found.births.empty());
  EXPECT_TRUE(found.absorbed.empty());
}

TEST(Dataflow, EmptyThenReadIsAMemoryBirth) {
  TraceBuilder b;
  const Tensor e = b.storage(Origin::kUnknown, {8}), c = b.storage(Origin::kUnknown, {8}), x = b.storage(),
               loss = b.storage();
  const OpId empty = b.op("aten::empty").out(e, {.nan = 8}).alloc().end();
  b.op("aten::copy_").inout(e.part(0, 4), {.nan = 4}).in(x, kClean, "src").out(e.part(0, 4));
  const OpId clone = b.op("aten::clone").in(e, {.nan = 4}).out(c, {.nan = 4}).end();
  const OpId sum = b.op("aten::sum").in(c, {.nan = 4}).out(loss, kNanValue).end();
  b.sink("loss", loss, kNanValue);
  const Birth birth = only_birth(b.trace);
  EXPECT_EQ(birth.kind, "memory");
  EXPECT_EQ(birth.op, empty);
  EXPECT_EQ(birth.storage, e.storage);
  EXPECT_EQ(birth.first_reader, clone);
  EXPECT_EQ(birth.path, (std::vector<OpId>{clone, sum}));
}

TEST(Dataflow, GarbageUnderOverflowingCopyIsNotBlamed) {
  TraceBuilder b;
  const Tensor x = b.storage(), e = b.storage();
  b.op("aten::empty").out(e, {.nan = 4}).alloc();
  const OpId copy = b.op("aten::copy_").inout(e, {.nan = 4}).in(x, kClean, "src").out(e, kInfValue).end();
  b.sink("loss", e, kInfValue);
  EXPECT_EQ(only_birth(b.trace).op, copy);
}

TEST(Dataflow, ACompositeParentIsNotBlamed) {
  TraceBuilder b;
  const Tensor x = b.storage(), s = b.storage(), y = b.storage();
  OpId div;
  {
    auto mean = b.op("aten::mean");
    mean.in(x);
    b.op("aten::sum").in(x).out(s);
    div = b.op("aten::div_").inout(s, kClean).out(s, kNanValue).end();
    mean.out(s, kNanValue);
  }
  b.op("aten::neg").in(s, kNanValue).out(y, kNanValue);
  b.sink("loss", y, kNanValue);
  EXPECT_EQ(only_birth(b.trace).op, div);
}

TEST(Dataflow, KernelCallingOtherOpsWritesItsOwnOutput) {
  TraceBuilder b;
  const Tensor x = b.storage(), y = b.storage();
  OpId norm;
  {
    auto call = b.op("aten::native_layer_norm");
    norm = call.in(x).id();
    b.op("aten::empty").out(y, {.nan = 2}).alloc();
    b.op("aten::view").in(x).out(x.as({2, 2})).view();
    call.out(y, kNanValue);
  }
  b.sink("loss", y, kNanValue);
  EXPECT_EQ(only_birth(b.trace).op, norm);
}

// LAPACK fills the buffer, ops inside read it. What the memory held when it was allocated makes no
// difference.
TEST(Dataflow, KernelReadsBackItsOwnWrites) {
  for (const Values garbage : {kClean, Values{.nan = 2}}) {
    TraceBuilder b;
    const Tensor x = b.storage(), raw = b.storage(), y = b.storage(), loss = b.storage();
    OpId eigh;
    {
      auto call = b.op("aten::linalg_eigh");
      eigh = call.in(x).id();
      b.op("aten::empty").out(raw, garbage).alloc();
      b.op("aten::div").in(raw, kNanValue).out(y, kNanValue);
      call.out(y, kNanValue);
    }
    b.op("aten::sum").in(y, kNanValue).out(loss, kNanValue);
    b.sink("loss", loss, kNanValue);
    const Birth birth = only_birth(b.trace);
    EXPECT_EQ(birth.op, eigh);
    EXPECT_EQ(birth.kind, "forward");
  }
}

// Memory that NumPy shares with a tensor: forward read it finite, backward finds it bad, and no op wrote it. What
// forward itself read bad in the end was in the batch; bytes that forward did not read may have been bad all along.
TEST(Dataflow, ValuesFiniteInForwardCameAfterIt) {
  enum class Between { kNothing, kBadRead, kOtherPart };
  for (const Between between : {Between::kNothing, Between::kBadRead, Between::kOtherPart}) {
    TraceBuilder b;
    const Tensor x = b.storage(Origin::kUnknown, {8}), y = b.storage(), grad = b.storage();
    const Tensor read = between == Between::kOtherPart ? x.part(0, 4) : x;
    const OpId forward = b.op("aten::mul").in(read).out(y).end();
    if (between == Between::kBadRead) b.op("aten::sum").in(x, kNanValue).out(b.storage(), kNanValue);
    OpId reader;
    {
      auto node = b.node("MulBackward0");
      node.forward(forward);
      reader = b.op("aten::mul").in(y, kClean, "self").in(x, kNanValue, "other").out(grad, kNanValue).end();
    }
    b.sink("gradient", grad, kNanValue);
    const Located found = locate(b.trace);
    ASSERT_FALSE(found.births.empty());
    const Birth& birth = found.births.front();
    EXPECT_EQ(birth.kind, between == Between::kNothing ? "memory" : "data");
    EXPECT_EQ(birth.storage, x.storage);
    if (between == Between::kNothing) {
      EXPECT_EQ(birth.first_reader, reader);
      EXPECT_EQ(birth.forward, forward);
      EXPECT_EQ(found.births.size(), 1u);
    }
  }
}

TEST(Dataflow, ValueWithoutAWriteIsAMemoryBirth) {
  TraceBuilder b;
  const Tensor x = b.storage(), y = b.storage(), z = b.storage();
  b.op("aten::relu").in(x).out(y);
  const OpId add = b.op("aten::add").in(y, kNanValue).out(z, kNanValue).end();
  b.sink("loss", z, kNanValue);
  const Birth birth = only_birth(b.trace);
  EXPECT_EQ(birth.kind, "memory");
  EXPECT_EQ(birth.op, kNone);
  EXPECT_EQ(birth.storage, y.storage);
  EXPECT_EQ(birth.first_reader, add);
}

TEST(Dataflow, ListOpsKeepTheirMembersApart) {
  TraceBuilder b;
  std::vector<Tensor> p, g;
  for (int i = 0; i < 3; ++i) {
    p.push_back(b.storage());
    g.push_back(b.storage());
  }
  const Tensor x = b.storage();
  const OpId sqrt = b.op("aten::sqrt").in(x).out(g[0], kNanValue).end();
  const OpId log = b.op("aten::log").in(x).out(g[2], kNanValue).end();
  {
    auto call = b.op("aten::_foreach_add_");
    for (int i = 0; i < 3; ++i) call.inout(p[i], kClean);
    for (int i = 0; i < 3; ++i) call.in(g[i], i == 1 ? kClean : kNanValue, "other");
    for (int i = 0; i < 3; ++i) call.out(p[i], i == 1 ? kClean : kNanValue, "self");
  }
  b.sink("parameter", p[2], kNanValue);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, log);
  ASSERT_EQ(found.absorbed.size(), 1u);
  EXPECT_EQ(found.absorbed[0].op, sqrt);
}

TEST(Dataflow, WrittenInputWithUnrecordedNewValues) {
  TraceBuilder b;
  const Tensor x = b.storage(), state = b.storage(Origin::kBuffer), y = b.storage(), z = b.storage();
  const OpId norm = b.op("mylib::update").in(x).inout(state, kClean, "running").out(y).end();
  b.op("aten::relu").in(y).out(z);
  EXPECT_TRUE(locate(b.trace).absorbed.empty());
  b.sink("buffer", state, kNanValue);
  EXPECT_EQ(only_birth(b.trace).op, norm);
}

TEST(Dataflow, UnendedOpsDoNotDisturbTheOrder) {
  TraceBuilder b;
  const Tensor x = b.storage(), y = b.storage(), z = b.storage();
  const OpId log = b.op("aten::log").in(x).out(y, kNanValue).end();
  b.op("aten::neg").in(y, kNanValue).out(z, kNanValue);
  b.sink("loss", z, kNanValue);
  auto running = b.op("aten::mul");
  running.in(z, kNanValue).end();
  running.op().end_order = 0;
  EXPECT_EQ(only_birth(b.trace).op, log);
}

}  // namespace
}  // namespace finitude::locate
