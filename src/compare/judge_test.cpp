#include "compare/judge.h"

#include <gtest/gtest.h>

#include <cmath>

namespace finitude::compare {
namespace {

// A chain of calls on one storage each: call i reads storage i and writes storage i + 1.
class Chain {
 public:
  Chain& call(const std::string& op, double value, const std::string& eps = "") {
    Call c;
    c.op = op;
    c.inputs.push_back(tensor(next_, last_));
    if (next_ == 0) c.inputs[0].name = "parameter w";
    c.outputs.push_back(tensor(next_ + 1, value));
    if (!eps.empty()) c.scalars.push_back({"eps", eps});
    last_ = value;
    ++next_;
    run.calls.push_back(c);
    return *this;
  }
  explicit Chain(double first) : last_(first) {}
  Run run;

 private:
  static Tensor tensor(std::uint32_t storage, double value) {
    Tensor t;
    t.element = element_of_name("float32");
    t.shape = {4};
    t.storage = storage;
    t.end = 16;
    t.health.numel = 4;
    if (std::isnan(value)) {
      t.health.nan = 4;
    } else if (std::isinf(value)) {
      t.health.pos_inf = 4;
    } else {
      t.health.min = t.health.max = value;
      t.health.absmax = std::fabs(value);
      t.health.sum_sq = 4 * value * value;
    }
    return t;
  }
  std::uint32_t next_ = 0;
  double last_;
};

Judgement judged(Run a, Run b, Pair::Tried tried = Pair::kNotTried) {
  connect(a);
  connect(b);
  std::vector<Pair> pairs;
  const auto rows = rows_of(a, b, &pairs);
  std::vector<Distance> results;
  fill_in(a, b, rows, pairs, results);
  for (Pair& pair : pairs) pair.tried = tried;
  return judge(a, b, rows, pairs, results);
}

TEST(Judge, NothingDiffers) {
  const compare::Run run = Chain(1).call("aten::exp", 2.7).call("aten::log", 1).run;
  const Judgement j = judged(run, run);
  EXPECT_EQ(j.first(), nullptr);
  EXPECT_EQ(j.first_noise(), nullptr);
  EXPECT_EQ(j.same, 2u);
}

TEST(Judge, TheMakingCallIsFirstTheRestFollows) {
  const Judgement j = judged(Chain(1).call("aten::exp", 2).call("aten::sin", 3).call("aten::cos", 4).run,
                             Chain(1).call("aten::exp", 2).call("aten::sin", 3.5).call("aten::cos", 7).run);
  ASSERT_NE(j.first(), nullptr);
  EXPECT_EQ(j.first()->kind, Root::kKernel);
  EXPECT_EQ(j.first()->row, 1u);
  EXPECT_EQ(j.roots.size(), 1u);
}

TEST(Judge, AnArgument) {
  const Judgement j = judged(Chain(1).call("aten::exp", 2).call("aten::norm", 3, "1e-5").run,
                             Chain(1).call("aten::exp", 2).call("aten::norm", 3.5, "1e-3").run);
  ASSERT_NE(j.first(), nullptr);
  EXPECT_EQ(j.first()->kind, Root::kArgument);
  EXPECT_EQ(j.first()->arguments[0].second.text, "1e-3");
}

TEST(Judge, WhatWasThereBefore) {
  const Judgement j = judged(Chain(1).call("aten::exp", 2).run, Chain(1.5).call("aten::exp", 4).run);
  ASSERT_NE(j.first(), nullptr);
  EXPECT_EQ(j.first()->kind, Root::kInput);
  EXPECT_EQ(j.first()->of.name, "parameter w");
}

TEST(Judge, AnOperatorThatOneSideHasAlone) {
  const compare::Run a = Chain(1).call("aten::exp", 2).call("aten::sin", 3).run;
  const Judgement changes = judged(a, Chain(1).call("aten::exp", 2).call("aten::add", 5).call("aten::sin", 9).run);
  ASSERT_NE(changes.first(), nullptr);
  EXPECT_EQ(changes.first()->kind, Root::kOperators);
  EXPECT_EQ(changes.first()->row, 1u);
  EXPECT_EQ(judged(a, Chain(1).call("aten::exp", 2).call("aten::add", 2).call("aten::sin", 3).run).first(), nullptr);
}

// What a log of zero covers up is no less different for that.
TEST(Judge, InfinityMakesNothingGood) {
  const compare::Run a =
      Chain(1).call("aten::exp", 2).call("aten::sin", 3).call("aten::log", INFINITY).call("aten::neg", INFINITY).run;
  const compare::Run b = Chain(1)
                             .call("aten::exp", 2)
                             .call("aten::add", 5)
                             .call("aten::sin", 9)
                             .call("aten::log", INFINITY)
                             .call("aten::neg", INFINITY)
                             .run;
  ASSERT_NE(judged(a, b).first(), nullptr);
  EXPECT_EQ(judged(a, b).first()->kind, Root::kOperators);
}

// x is scaled, then halved; or halved, then scaled.
TEST(Judge, WhatIsMadeGoodIsNoDivergence) {
  const compare::Run a =
      Chain(1).call("aten::exp", 2).call("aten::div", 8).call("aten::mul", 4).call("aten::sin", 3).run;
  const compare::Run b =
      Chain(1).call("aten::exp", 2).call("aten::mul", 1).call("aten::div", 4).call("aten::sin", 3).run;
  EXPECT_EQ(judged(a, b).first(), nullptr);
  const compare::Run c =
      Chain(1).call("aten::exp", 2).call("aten::mul", 1).call("aten::div", 4.5).call("aten::sin", 3.5).run;
  ASSERT_NE(judged(a, c).first(), nullptr);
  EXPECT_EQ(judged(a, c).first()->kind, Root::kOperators);
}

TEST(Judge, NumbersThatAreDrawnByOtherOperators) {
  compare::Run a = Chain(1).call("aten::exp", 2).call("aten::bernoulli", 8).call("aten::sin", 3).run;
  compare::Run b = Chain(1).call("aten::exp", 2).call("aten::rand", 1).call("aten::ge", 4).call("aten::sin", 5).run;
  a.calls[1].random = b.calls[1].random = true;
  a.calls[1].random_state = b.calls[1].random_state = 7;
  ASSERT_NE(judged(a, b).first(), nullptr);
  EXPECT_EQ(judged(a, b).first()->kind, Root::kRandom);
  EXPECT_FALSE(judged(a, b).first()->elsewhere);
  b.calls[1].random = false;  // one side draws: it is a matter of operators
  EXPECT_EQ(judged(a, b).first()->kind, Root::kOperators);
}

TEST(Rows, ReorderedCallsWithOtherValuesFindTheirOwn) {
  compare::Run a, b;
  const auto tensor = [](std::uint32_t storage, double value) {
    Tensor t;
    t.element = element_of_name("float32");
    t.shape = {4};
    t.storage = storage;
    t.end = 16;
    t.health.numel = 4;
    t.health.min = t.health.max = t.health.absmax = value;
    t.health.sum_sq = 4 * value * value;
    t.checksum = static_cast<std::uint64_t>(value * 1000);
    t.has_checksum = true;
    return t;
  };
  const auto add = [&](compare::Run& run, const char* op, Tensor in, Tensor out) {
    Call c;
    c.op = op;
    c.inputs.push_back(in);
    c.outputs.push_back(out);
    run.calls.push_back(c);
  };
  // A: sin(x), sin(y); B: sin(y), sin(x).
  add(a, "aten::exp", tensor(0, 1), tensor(1, 2));
  add(a, "aten::log", tensor(0, 1), tensor(2, 3));
  add(a, "aten::sin", tensor(1, 2), tensor(3, 5));
  add(a, "aten::cos", tensor(2, 3), tensor(4, 7));
  add(b, "aten::exp", tensor(0, 1), tensor(1, 2));
  add(b, "aten::log", tensor(0, 1), tensor(2, 3));
  add(b, "aten::cos", tensor(2, 3), tensor(4, 7));
  add(b, "aten::sin", tensor(1, 2), tensor(3, 5));
  connect(a);
  connect(b);
  std::vector<Pair> pairs;
  const auto rows = rows_of(a, b, &pairs);
  EXPECT_EQ(rows.size(), 4u);
  EXPECT_EQ(pairs.size(), 4u);
  for (const Row& row : rows) {
    ASSERT_TRUE(row.a != kGap && row.b != kGap);
    EXPECT_EQ(a.calls[row.a].op, b.calls[row.b].op);
  }
}

TEST(Judge, RoundingThatGrowsIsNoDivergence) {
  const float more = std::nextafter(2.0f, 3.0f);
  const compare::Run a = Chain(1).call("aten::exp", 2).call("aten::log", 1e-3).call("aten::sin", 5).run;
  const compare::Run b = Chain(1).call("aten::exp", more).call("aten::log", 2e-3).call("aten::sin", 6).run;
  const Judgement tried = judged(a, b, Pair::kAgrees);
  EXPECT_EQ(tried.first(), nullptr);
  ASSERT_NE(tried.first_noise(), nullptr);
  EXPECT_EQ(tried.first_noise()->row, 0u);
  EXPECT_GT(tried.noise_growth, 0.1);
  // Where the same inputs give something else, it is one.
  const Judgement other = judged(a, b, Pair::kDisagrees);
  ASSERT_NE(other.first(), nullptr);
  EXPECT_EQ(other.first()->row, 1u);
}

TEST(Judge, NanOnOneSideIsNeverRounding) {
  const float more = std::nextafter(2.0f, 3.0f);
  const Judgement j = judged(Chain(1).call("aten::exp", 2).call("aten::log", 1).run,
                             Chain(1).call("aten::exp", more).call("aten::log", std::nan("")).run, Pair::kAgrees);
  ASSERT_NE(j.first(), nullptr);
  EXPECT_EQ(j.first()->kind, Root::kNonFinite);
  EXPECT_EQ(j.first()->row, 1u);
  const compare::Run both = Chain(1).call("aten::log", std::nan("")).run;
  EXPECT_EQ(judged(both, both).first(), nullptr);
  EXPECT_EQ(judged(both, both).both_nan, 0u);
}

TEST(Noise, GrowsWithTheTermsAndNoFurther) {
  Call mm;
  mm.op = "aten::mm";
  Tensor t;
  t.element = element_of_name("float32");
  t.shape = {8, 64};
  mm.inputs.push_back(t);
  t.shape = {64, 8};
  mm.inputs.push_back(t);
  t.shape = {8, 8};
  mm.outputs.push_back(t);
  EXPECT_DOUBLE_EQ(noise_of(mm).terms, 64);
  Call add = mm;
  add.op = "aten::lgamma";  // ends in "mma", multiplies nothing
  EXPECT_DOUBLE_EQ(noise_of(add).terms, 8);
  mm.inputs[0].shape = {8, 1 << 20};
  mm.inputs[1].shape = {1 << 20, 8};
  EXPECT_DOUBLE_EQ(noise_of(mm).terms, kMostTerms);
  mm.inputs[0].element = element_of_name("bfloat16");
  EXPECT_EQ(noise_of(mm).epsilon, 0x1p-7);
}

}  // namespace
}  // namespace finitude::compare
