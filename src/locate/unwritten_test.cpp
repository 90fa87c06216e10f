// Bad values in memory that no recorded operator wrote, and what rows of a birth can be.
#include <gtest/gtest.h>

#include "locate/batch_rows.h"
#include "locate/slice.h"
#include "locate/testing.h"

namespace finitude::locate {
namespace {

using record::Origin;
using record::Phase;
using testing::kClean;
using testing::kNanValue;
using testing::Tensor;
using testing::TraceBuilder;

// What a checkpoint computes again ends with an exception in the operator whose result was the last to be kept.
record::OpId recomputed(TraceBuilder& b, bool failed, bool hook_reads = false) {
  const Tensor x = b.storage(), kept = b.storage(), grad = b.storage();
  b.phase = Phase::kBackward;
  record::OpId pow = record::kNone;
  {
    auto call = b.op("aten::pow");
    pow = call.in(x).id();
    if (hook_reads) b.op("aten::detach").in(kept, kNanValue).out(kept, kNanValue).view().end();
  }
  b.trace.ops[pow].failed = failed;
  b.op("aten::mul").in(kept, kNanValue).out(grad, kNanValue);
  b.sink("gradient", grad, kNanValue);
  return pow;
}

TEST(Unwritten, ByAnOperatorThatACheckpointInterrupted) {
  TraceBuilder b;
  const auto pow = recomputed(b, true);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, pow);
  TraceBuilder hook;
  const auto read = recomputed(hook, true, true);
  EXPECT_EQ(locate(hook.trace).births.at(0).op, read);
  TraceBuilder twin;
  recomputed(twin, false);
  EXPECT_EQ(locate(twin.trace).births.at(0).op, record::kNone);
}

// A kernel that wants its result in another order of memory makes a copy of what is not written yet, and copies it
// back. Has an operator of PyTorch's own begun by then, so did its result.
Located resized(TraceBuilder& b, const char* by, bool bad_before) {
  const Tensor x = b.storage(Origin::kBatch), y = b.storage(), out = b.storage(), copy = b.storage();
  b.op("aten::log").in(x).out(y, bad_before ? kNanValue : kClean).end();
  {
    auto outer = b.op(by);
    outer.in(y, bad_before ? kNanValue : kClean).out(out, kNanValue);
    b.op("aten::clone").in(out, kNanValue).out(copy, kNanValue).end();
    b.op("aten::copy_").in(copy, kNanValue).out(out, kNanValue).end();
  }
  b.sink("loss", out, kNanValue);
  return locate(b.trace);
}

TEST(Unwritten, ResultThatItsOwnOperatorReadsFirst) {
  TraceBuilder b;
  const Located found = resized(b, "aten::upsample_bilinear2d", true);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(b.trace.ops[found.births[0].op].name, "aten::log");
  TraceBuilder made_there;
  EXPECT_EQ(resized(made_there, "aten::upsample_bilinear2d", false).births.at(0).op, 1u);
  TraceBuilder strange;  // of a library, which may have memory of its own from anywhere
  EXPECT_EQ(resized(strange, "mine::resize", false).births.at(0).op, record::kNone);
}

// Integers, of which the step sees the bits as floats.
record::OpId viewed(TraceBuilder& b, sense::DType from) {
  const Tensor words = b.storage(Origin::kBatch), loss = b.storage();
  auto call = b.op("aten::view");
  const auto view = call.in(words).out(words).view().end();
  b.trace.ops[view].inputs[0].dtype = from;
  b.op("aten::sum").in(words, kNanValue).out(loss, kNanValue);
  b.sink("loss", loss, kNanValue);
  return view;
}

TEST(Unwritten, BitsThatAViewTakesForFloats) {
  TraceBuilder b;
  const auto view = viewed(b, sense::DType::kOther);
  const Located found = locate(b.trace);
  ASSERT_EQ(found.births.size(), 1u);
  EXPECT_EQ(found.births[0].op, view);
  EXPECT_EQ(found.births[0].first_reader, view + 1);
  TraceBuilder twin;
  viewed(twin, sense::DType::kFloat32);
  EXPECT_EQ(locate(twin.trace).births.at(0).kind, "data");
}

// x [8, 8] of the batch, a weight [8, 8]; and what is divided at last.
struct Rows {
  TraceBuilder b;
  Tensor x = b.storage(Origin::kBatch, {8, 8}), w = b.storage(Origin::kParameter, {8, 8});

  bool can_be_samples(const Tensor& read) {
    Birth birth;
    birth.op = b.op("aten::div").in(read).out(b.storage(Origin::kUnknown, {8, 8}), kNanValue).end();
    birth.rows = {3};
    return rows_can_be_samples(b.trace, {birth}, 1)[0];
  }
  Tensor of(const char* name, const Tensor& from, std::vector<std::int64_t> shape = {8, 8}, const char* dim = "") {
    const Tensor out = b.storage(Origin::kUnknown, std::move(shape));
    auto call = b.op(name);
    call.in(from).out(out);
    if (*dim != '\0') call.op().scalars.push_back({"dim", dim, std::nullopt, false});
    call.end();
    return out;
  }
  Tensor product(const Tensor& left, const Tensor& right) {
    const Tensor out = b.storage(Origin::kUnknown, {8, 8});
    b.op("aten::mm").in(left).in(right, kClean, "mat2").out(out).end();
    return out;
  }
  Tensor transposed(const Tensor& from) {
    Tensor out = from;
    b.op("aten::t").in(from).out(out).view().end();
    return out;
  }
};

TEST(BatchRows, OfParametersInTheOptimizerAreNone) {
  for (const auto phase : {record::Phase::kForward, record::Phase::kOptimizer}) {
    Rows r;
    Birth birth;
    birth.op = r.b.op("aten::sqrt").in(r.x).out(r.b.storage(Origin::kUnknown, {8, 8}), kNanValue).end();
    birth.rows = {3};
    r.b.trace.ops[birth.op].phase = phase;
    EXPECT_EQ(rows_can_be_samples(r.b.trace, {birth}, 1)[0], phase == record::Phase::kForward);
  }
}

TEST(BatchRows, OfGroupsAreNone) {
  for (const char* dim : {"0", "-2", "1"}) {
    Rows r;
    EXPECT_EQ(r.can_be_samples(r.of("aten::index_add", r.x, {8, 8}, dim)), std::string(dim) == "1") << dim;
    EXPECT_TRUE(r.can_be_samples(r.of("aten::cumsum", r.x, {8, 8}, dim)));
  }
}

// points [8, 1] of a weight times a mask of the program's own: its rows are points.
TEST(BatchRows, OfAWeightThatDataIsPairedWithAreNone) {
  for (const std::int64_t rows : {8, 1}) {
    Rows r;
    const Tensor gamma = r.b.storage(Origin::kParameter, {rows, 8}), out = r.b.storage(Origin::kUnknown, {8, 8});
    r.b.op("aten::mul").in(gamma).in(r.x, kClean, "other").out(out).end();
    EXPECT_EQ(r.can_be_samples(out), rows == 1);
  }
}

TEST(BatchRows, OfTheDataButNotOfWeights) {
  Rows r;
  EXPECT_TRUE(r.can_be_samples(r.of("aten::exp", r.x)));
  EXPECT_TRUE(r.can_be_samples(r.product(r.x, r.w)));
  EXPECT_FALSE(r.can_be_samples(r.of("aten::exp", r.w)));
  EXPECT_FALSE(r.can_be_samples(r.product(r.w, r.x)));
}

// Beside a batch of a loader: tables with as many rows, which the program had from before or fills in the step. Where
// no loader gave anything, they may be the batch. Noise is drawn for each sample.
TEST(BatchRows, OfTablesAreNone) {
  for (const bool loaded : {true, false}) {
    Rows r;
    if (!loaded) r.b.trace.storages[r.x.storage].origin = Origin::kUnknown;
    const Tensor table = r.b.storage(Origin::kUnknown, {8, 8}), made = r.b.storage(Origin::kUnknown, {8, 8}),
                 noise = r.b.storage(Origin::kUnknown, {8, 8});
    r.b.op("aten::arange").out(made).end();
    auto draw = r.b.op("aten::randn");
    draw.op().random = true;
    draw.out(noise).end();
    EXPECT_EQ(r.can_be_samples(r.of("aten::exp", table)), !loaded);
    EXPECT_EQ(r.can_be_samples(r.of("aten::exp", made)), !loaded);
    EXPECT_TRUE(r.can_be_samples(r.of("aten::exp", noise)));
    EXPECT_TRUE(r.can_be_samples(r.of("aten::exp", r.x)));
  }
}

TEST(BatchRows, NotOfFeatures) {
  Rows r;
  EXPECT_FALSE(r.can_be_samples(r.of("aten::clone", r.transposed(r.of("aten::exp", r.x)))));
  EXPECT_TRUE(r.can_be_samples(r.of("aten::std", r.x, {8}, "[1]")));
  EXPECT_FALSE(r.can_be_samples(r.of("aten::std", r.x, {8}, "[0]")));
  EXPECT_TRUE(r.can_be_samples(r.of("aten::mean", r.x, {1, 8}, "[0]")));
}

TEST(BatchRows, NotInTheOrderOfAnIndex) {
  Rows r;
  const auto taken = [&](std::int64_t numbers, std::int64_t rows) {
    const Tensor index = r.b.storage(Origin::kUnknown, {numbers}), out = r.b.storage(Origin::kUnknown, {rows, 8});
    r.b.op("aten::index").in(r.x).in(index, kClean, "indices").out(out).end();
    return r.of("aten::exp", out, {rows, 8});
  };
  EXPECT_FALSE(r.can_be_samples(taken(8, 8)));
  EXPECT_TRUE(r.can_be_samples(taken(3, 8)));  // x[:, columns]
}

TEST(BatchRows, TransposedAndBack) {
  Rows r;
  const Tensor h = r.of("aten::exp", r.x, {8, 6}), t = h.as({6, 8});
  r.b.op("aten::t").in(h).out(t).view().end();
  const Tensor wide = r.of("aten::clone", t, {6, 8}), back = wide.as({8, 6});
  EXPECT_FALSE(r.can_be_samples(wide));
  r.b.op("aten::t").in(wide).out(back).view().end();
  EXPECT_TRUE(r.can_be_samples(r.of("aten::clone", back, {8, 6})));
  EXPECT_TRUE(r.can_be_samples(h));  // h itself stays as it is
}

TEST(BatchRows, MemoryAllocatedInAnOperatorIsItsOwn) {
  Rows r;
  const Tensor out = r.b.storage(Origin::kUnknown, {8, 8});
  {
    auto outer = r.b.op("aten::_weight_norm_interface");
    outer.in(r.w).out(out);
    r.b.op("aten::zeros").out(out).end();
  }
  EXPECT_FALSE(r.can_be_samples(out));
}

}  // namespace
}  // namespace finitude::locate
