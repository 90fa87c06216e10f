// Random data-flow graphs with one seeded birth: whatever the graph, the slice from the sink finds it. And
// size.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "base/thread_time.h"
#include "locate/slice.h"
#include "locate/testing.h"
#include "record/trace_jsonl.h"

namespace finitude::locate {
namespace {

using record::OpId;
using record::Origin;
using testing::kClean;
using testing::kInfValue;
using testing::kNanValue;
using testing::Tensor;
using testing::TraceBuilder;
using testing::Values;

constexpr int kElements = 12;

// A machine that really moves flags about: per storage and element, is it bad? Ops are elementwise on equal
// lengths.
struct Machine {
  std::mt19937 rng;
  TraceBuilder b;
  std::vector<std::vector<bool>> bad;
  explicit Machine(std::uint32_t seed) : rng(seed) {}

  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(rng() % n); }
  Tensor fresh() {
    bad.emplace_back(kElements, false);
    return b.storage(Origin::kUnknown, {kElements});
  }
  Tensor whole(std::uint32_t s) const { return {s, {kElements}}; }
  Tensor random_part() {
    const auto begin = below(kElements), count = 1 + below(kElements - begin);
    return whole(below(static_cast<std::uint32_t>(bad.size()))).part(begin, count);
  }
  Values values(const Tensor& t) const {
    Values v;
    for (std::int64_t i = 0; i < t.numel(); ++i) v.nan += bad[t.storage][static_cast<std::size_t>(t.begin / 4 + i)];
    return v;
  }
  bool is_bad(const Tensor& t) const { return values(t).nan != 0; }
  void set(const Tensor& t, const std::vector<bool>& flags) {
    for (std::size_t i = 0; i < flags.size(); ++i) bad[t.storage][static_cast<std::size_t>(t.begin / 4) + i] = flags[i];
  }
  std::vector<bool> get(const Tensor& t) const {
    const auto begin = bad[t.storage].begin() + t.begin / 4;
    return {begin, begin + t.numel()};
  }

  void step() {
    const Tensor in = random_part();
    const auto n = in.numel();
    const Values before = values(in);
    std::vector<bool> flags = get(in);
    switch (below(6)) {
      case 0: {  // a new tensor
        const Tensor out = fresh().part(0, n);
        set(out, flags);
        b.op("aten::neg").in(in, before).out(out, values(out));
        break;
      }
      case 1: {  // copied into part of another one
        Tensor out = whole(below(static_cast<std::uint32_t>(bad.size())))
                         .part(below(kElements - static_cast<std::uint32_t>(n) + 1), n);
        if (out.storage == in.storage) return;
        const Values old = values(out);
        set(out, flags);
        b.op("aten::copy_").inout(out, old).in(in, before, "src").out(out, values(out));
        break;
      }
      case 2: {  // in place, nested in a composite
        auto outer = b.op("aten::sub_");
        outer.inout(in, before);
        b.op("aten::add_").inout(in, before).in(in, before, "other").out(in, before);
        outer.out(in, before);
        break;
      }
      case 3: {  // a view
        b.op("aten::slice").in(in, before).out(in.part(0, 1), values(in.part(0, 1))).view();
        break;
      }
      case 4: {  // two inputs
        const Tensor other = whole(below(static_cast<std::uint32_t>(bad.size()))).part(0, n);
        const std::vector<bool> more = get(other);
        for (std::size_t i = 0; i < more.size(); ++i) flags[i] = flags[i] || more[i];
        const Values seen = values(other);
        const Tensor out = fresh().part(0, n);
        set(out, flags);
        b.op("aten::add").in(in, before).in(other, seen, "other").out(out, values(out));
        break;
      }
      default: {  // absorbed
        const Tensor out = fresh().part(0, n);
        b.op("aten::nan_to_num").in(in, before).out(out);
        break;
      }
    }
  }
};

TEST(SliceProperty, ASingleSeededBirthIsAlwaysFound) {
  int sinks = 0;
  for (std::uint32_t seed = 0; seed < 1500; ++seed) {
    Machine m(seed);
    for (int i = 0; i < 4; ++i) m.b.op("aten::randn").out(m.fresh());
    const auto steps = 5 + m.below(60);
    for (std::uint32_t i = 0; i < steps; ++i) m.step();
    const Tensor born = m.random_part();
    m.set(born, std::vector<bool>(static_cast<std::size_t>(born.numel()), true));
    const OpId birth = m.b.op("aten::log_").inout(born, kClean).out(born, m.values(born)).end();
    for (std::uint32_t i = 0; i < steps; ++i) m.step();
    for (std::uint32_t s = 0; s < m.bad.size(); ++s) {
      if (!m.is_bad(m.whole(s))) continue;
      ++sinks;
      m.b.trace.sinks.clear();
      m.b.sink("loss", m.whole(s), m.values(m.whole(s)));
      const Located found = locate(m.b.trace);
      ASSERT_EQ(found.births.size(), 1u) << "seed " << seed;
      ASSERT_EQ(found.births[0].op, birth) << "seed " << seed;
      ASSERT_EQ(found.births[0].kind, "forward");
      ASSERT_TRUE(std::ranges::is_sorted(found.births[0].path)) << "seed " << seed;
      ASSERT_TRUE(found.absorbed.empty()) << "seed " << seed;
    }
  }
  EXPECT_GT(sinks, 1000);
}

TEST(SliceProperty, WithoutABirthThereIsNone) {
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    Machine m(seed);
    for (int i = 0; i < 4; ++i) m.b.op("aten::randn").out(m.fresh());
    for (int i = 0; i < 60; ++i) m.step();
    for (std::uint32_t s = 0; s < m.bad.size(); ++s) m.b.sink("loss", m.whole(s), kClean);
    const Located found = locate(m.b.trace);
    EXPECT_TRUE(found.births.empty() && found.absorbed.empty());
  }
}

// Of processor time: another program on the machine makes it no longer.
double seconds_to_locate(const record::Trace& trace, OpId expected) {
  const auto begin = base::thread_time();
  const Located found = locate(trace);
  const std::chrono::duration<double> took = base::thread_time() - begin;
  EXPECT_FALSE(found.births.empty());
  if (!found.births.empty()) {
    EXPECT_EQ(found.births[0].op, expected);
  }
  return took.count();
}

TEST(SliceProperty, TwoHundredThousandOpsInAChain) {
  TraceBuilder b;
  Tensor x = b.storage(), y = b.storage();
  const OpId born = b.op("aten::log").in(x).out(y, kNanValue).end();
  for (int i = 0; i < 200'000; ++i) {
    x = y;
    y = b.storage();
    b.op("aten::add").in(x, kNanValue).in(x, kNanValue, "other").out(y, kNanValue);
  }
  b.sink("loss", y, kNanValue);
  EXPECT_LT(seconds_to_locate(b.trace, born), 20.0);
}

TEST(SliceProperty, BufferFilledBySlicesAndReadEachTime) {
  TraceBuilder b;
  constexpr int kSteps = 20'000;
  const Tensor x = b.storage(), buffer = b.storage(Origin::kUnknown, {2 * kSteps}), loss = b.storage();
  b.op("aten::zeros").out(buffer);
  OpId born = record::kNone;
  for (int i = 0; i < kSteps; ++i) {
    const Tensor slot = buffer.part(2 * i, 1);
    const OpId op = b.op("aten::log_").inout(slot, kClean).out(slot, kNanValue).end();
    if (i == 0) born = op;
    b.op("aten::sum").in(buffer, {.nan = static_cast<std::uint64_t>(i + 1)}).out(loss, kNanValue);
  }
  b.sink("loss", loss, kNanValue);
  EXPECT_LT(seconds_to_locate(b.trace, born), 20.0);
}

// A trace file is hostile input: whatever the reader lets through, locate must survive and stay within its
// limits.
TEST(SliceProperty, AnyTraceThatTheReaderAcceptsIsLocated) {
  Machine m(7);
  for (int i = 0; i < 4; ++i) m.b.op("aten::randn").out(m.fresh());
  const Tensor born = m.random_part();
  m.set(born, std::vector<bool>(static_cast<std::size_t>(born.numel()), true));
  m.b.op("aten::log_").inout(born, kClean).out(born, m.values(born));
  {
    auto node = m.b.node("LogBackward0");
    node.forward(4);
    for (int i = 0; i < 12; ++i) m.step();
  }
  for (std::uint32_t s = 0; s < m.bad.size(); ++s) m.b.sink("gradient", m.whole(s), m.values(m.whole(s)));
  const std::string good = record::to_jsonl(m.b.trace);
  int accepted = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string text = good;
    for (int edits = 0; edits < 3; ++edits) {
      const std::size_t at = text.find_first_of("0123456789", m.rng() % text.size());  // ids, spans, counts, ranks
      if (at == std::string::npos) continue;
      text[at] = static_cast<char>('0' + m.below(10));
      if (m.below(4) == 0) text.insert(at, 1, static_cast<char>('1' + m.below(9)));
    }
    record::Trace trace;
    std::string error;
    if (!record::from_jsonl(text, &trace, &error)) continue;
    ++accepted;
    const Located found = locate(trace);
    for (const auto* list : {&found.births, &found.absorbed}) {
      ASSERT_LE(list->size(), 64u);
      for (const Birth& birth : *list) {
        ASSERT_LE(birth.path.size(), 64u);
        for (const OpId op : {birth.op, birth.node, birth.forward, birth.absorbed_by, birth.first_reader}) {
          ASSERT_TRUE(op == record::kNone || op < trace.ops.size());
        }
      }
    }
  }
  EXPECT_GT(accepted, 200);
}

TEST(SliceProperty, DeepNestingNeedsNoRecursion) {
  TraceBuilder b;
  const Tensor x = b.storage(), y = b.storage();
  constexpr OpId kDepth = 50'000;
  for (OpId i = 0; i < kDepth; ++i) {
    record::Op op;
    op.name = "aten::nested";
    op.parent = i == 0 ? record::kNone : i - 1;
    op.end_order = kDepth - i;
    op.inputs.push_back(testing::use_of(x, kClean, "self"));
    op.outputs.push_back(testing::use_of(y, kInfValue, ""));
    b.trace.ops.push_back(std::move(op));
  }
  b.trace.sinks.push_back({"loss", "loss", testing::use_of(y, kInfValue, ""), record::kNone, 0});
  EXPECT_LT(seconds_to_locate(b.trace, kDepth - 1), 20.0);
}

}  // namespace
}  // namespace finitude::locate
