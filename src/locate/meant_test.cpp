#include "locate/meant.h"

#include <gtest/gtest.h>

#include "locate/slice.h"
#include "locate/testing.h"

namespace finitude::locate {
namespace {

using record::kNone;
using record::OpId;
using record::Origin;
using testing::kClean;
using testing::kNanValue;
using testing::Tensor;
using testing::TraceBuilder;
using testing::Values;

// An open bound: infinities alone, which the program chooses away on purpose; an activation that hides them
// by chance says nothing of the sort.
TEST(Meant, DeselectedBatchInfinityIsBornAtTheDamage) {
  for (const std::string name : {"aten::where", "aten::tanh"}) {
    TraceBuilder b;
    const Tensor y = b.storage(Origin::kBatch), x = b.storage(), d = b.storage(), w = b.storage();
    const Values infinite{.pos_inf = 1, .min = -1, .max = 0.7};
    b.binary("aten::sub", x, kClean, y, infinite, d, infinite);
    b.op(name).in(d, infinite).out(w).end();
    const Tensor g = b.storage(), gd = b.storage();
    OpId mul;
    {
      auto call = b.node("PowBackward0");
      mul = b.binary("aten::mul", g, kClean, d, infinite, gd, kNanValue);
    }
    b.sink("gradient", gd, kNanValue);
    const Located found = locate(b.trace);
    ASSERT_FALSE(found.births.empty());
    const bool dropped = name == "aten::where";
    EXPECT_EQ(found.births[0].kind, dropped ? "backward" : "data") << name;
    EXPECT_EQ(found.births[0].op, dropped ? mul : kNone) << name;
    EXPECT_EQ(found.meant.storages,
              dropped ? std::vector<record::StorageId>{y.storage} : std::vector<record::StorageId>{})
        << name;
  }
}

// An activation that hides them: only where the program asks whether its data is infinite does it know of them.
TEST(Meant, RequestedInfinityMayBeHiddenByAnActivation) {
  for (const std::string asks : {"aten::isinf", "aten::isfinite", "aten::abs"}) {
    TraceBuilder b;
    const Tensor y = b.storage(Origin::kBatch), x = b.storage(), d = b.storage(), w = b.storage(), c = b.storage();
    const Values infinite{.pos_inf = 1, .min = -1, .max = 0.7};
    b.op(asks).in(y, infinite).out(c).end();
    b.binary("aten::mul", x, kClean, y, infinite, d, infinite);
    b.op("aten::tanh").in(d, infinite).out(w).end();
    const Tensor g = b.storage(), gd = b.storage();
    OpId mul;
    {
      auto call = b.node("MulBackward0");
      mul = b.binary("aten::mul", g, kClean, y, infinite, gd, kNanValue);
    }
    b.sink("gradient", gd, kNanValue);
    const Located found = locate(b.trace);
    ASSERT_FALSE(found.births.empty());
    EXPECT_EQ(found.births[0].op, asks == "aten::abs" ? kNone : mul) << asks;
  }
}

// Backward multiplies by what forward kept, and that stays infinite for a while: it is no birth of its own there.
TEST(Meant, DeselectedForwardInfinityMayTravelThroughBackward) {
  TraceBuilder b;
  const Tensor y = b.storage(Origin::kBatch), x = b.storage(), d = b.storage(), w = b.storage();
  const Values infinite{.pos_inf = 1, .min = -1, .max = 0.7};
  b.binary("aten::mul", x, kClean, y, infinite, d, infinite);
  b.op("aten::where").in(d, infinite).out(w).end();
  const Tensor g = b.storage(), twice = b.storage(), gd = b.storage();
  OpId mul;
  {
    auto call = b.node("PowBackward0");
    b.unary("aten::mul", d, infinite, twice, infinite);
    mul = b.binary("aten::mul", g, kClean, twice, infinite, gd, kNanValue);
  }
  b.sink("gradient", gd, kNanValue);
  const Located found = locate(b.trace);
  ASSERT_FALSE(found.births.empty());
  EXPECT_EQ(found.births[0].kind, "backward");
  EXPECT_EQ(found.births[0].op, mul);
}

// A mask of zeros takes all of them out, or leaves one.
TEST(Meant, MaskMultipliedBatchInfinityIsBornInProduct) {
  for (const bool all : {true, false}) {
    TraceBuilder b;
    const Tensor y = b.storage(Origin::kBatch), d = b.storage(), mask = b.storage(), product = b.storage(),
                 loss = b.storage();
    const Values infinite{.pos_inf = 2, .min = -1, .max = 0.7}, rest{.nan = 1, .pos_inf = 1};
    b.unary("aten::exp", y, infinite, d, infinite);
    const OpId mul = b.binary("aten::mul", d, infinite, mask, {.min = 0, .max = 1, .zero = 2}, product,
                              all ? Values{.nan = 2} : rest);
    b.unary("aten::sum", product, kNanValue, loss, kNanValue);
    b.sink("loss", loss, kNanValue);
    const Located found = locate(b.trace);
    ASSERT_FALSE(found.births.empty());
    EXPECT_EQ(found.births[0].kind, all ? "forward" : "data");
    EXPECT_EQ(found.births[0].op, all ? mul : kNone);
  }
}

// x[3, 0] = inf, then a linear layer: an infinity over a part of other data. Zeros with -Inf over a part of them are a
// mask where they are added, and data where they are multiplied.
TEST(Meant, InfinityWrittenIntoDataIsBornThere) {
  for (const bool mask : {false, true}) {
    TraceBuilder b;
    const Tensor x = b.storage(Origin::kUnknown, {4, 2}), w = b.storage(), y = b.storage(Origin::kUnknown, {4, 2});
    const Tensor one = x.part(6, 1);
    const Values infinite = mask ? Values{.neg_inf = 1, .min = 0, .max = 0, .zero = 7} : Values{.pos_inf = 1};
    b.op("aten::randn").out(x).end();
    const OpId fill =
        b.op("aten::fill_").inout(one, kClean).number(mask ? -INFINITY : INFINITY).out(one, infinite).end();
    const OpId mm = b.binary("aten::mm", x, infinite, w, kClean, y, {.nan = 2});
    b.sink("loss", y, {.nan = 2});
    const Located found = locate(b.trace);
    ASSERT_EQ(found.births.size(), 1u);
    EXPECT_EQ(found.births[0].op, fill);
    EXPECT_EQ(found.births[0].kind, "data");
    EXPECT_EQ(found.births[0].first_reader, mm);
  }
}

// h[h > 1] = inf within a module, then a sum: what the model computed has finite numbers beside it, a mask has none.
TEST(Meant, InfinityWrittenIntoAResultIsBornThere) {
  for (const bool mask : {false, true}) {
    TraceBuilder b;
    const Tensor h = b.storage(Origin::kUnknown, {4, 2}), y = b.storage();
    const Values infinite =
        mask ? Values{.neg_inf = 2, .min = 0, .max = 0, .zero = 6} : Values{.pos_inf = 2, .max = 0.7};
    b.op("aten::relu").in(b.storage(), kClean).out(h).end();
    const OpId fill =
        b.op("aten::masked_fill_").inout(h, kClean).number(mask ? -INFINITY : INFINITY).out(h, infinite).end();
    const OpId sum = b.unary("aten::sum", h, infinite, y, mask ? Values{.neg_inf = 1} : Values{.pos_inf = 1});
    b.sink("loss", y, mask ? Values{.neg_inf = 1} : Values{.pos_inf = 1});
    const Located found = locate(b.trace);
    ASSERT_EQ(found.births.size(), 1u);
    EXPECT_EQ(found.births[0].op, mask ? sum : fill);
    if (!mask) {
      EXPECT_EQ(found.births[0].first_reader, sum);
    }
  }
}

}  // namespace
}  // namespace finitude::locate
