#include "record/event_sink.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "record/trace_jsonl.h"

namespace finitude::record {
namespace {

SeenTensor tensor(void* memory, std::int64_t end = 4) {
  SeenTensor seen;
  seen.memory = memory;
  seen.use.end = end;
  seen.use.shape = {end};
  return seen;
}

BeginOp op(const EventSink& sink, const std::string& name, OpId parent = kNone) {
  BeginOp begun;
  begun.op.name = name;
  begun.op.parent = parent;
  begun.generation = sink.generation();
  return begun;
}

TEST(EventSink, OffItTakesNothingIn) {
  EventSink sink;
  EXPECT_FALSE(sink.begin(op(sink, "a")));
  sink.start();
  const auto open = sink.begin(op(sink, "a"));
  sink.stop();
  EXPECT_FALSE(sink.begin(op(sink, "b")));
  EXPECT_TRUE(sink.end(open, {}));  // what has begun may end
  EXPECT_EQ(sink.dropped(), 0u);
  const Trace trace = sink.take();
  ASSERT_EQ(trace.ops.size(), 1u);
  EXPECT_EQ(trace.ops[0].end_order, 1u);
  EXPECT_FALSE(trace.truncated);
}

TEST(EventSink, KeepsWhatItIsGivenInOrder) {
  int a, b;
  EventSink sink;
  sink.start();
  BeginOp outer = op(sink, "outer");
  outer.inputs = {tensor(&a), tensor(nullptr), tensor(&b), tensor(&a, 2)};
  outer.op.scalars.push_back({"alpha", "1", 1.0, false});
  const auto first = sink.begin(std::move(outer));
  const auto second = sink.begin(op(sink, "inner", first.op));
  EndOp ended;
  ended.outputs = {tensor(&b)};
  ended.scalars.push_back({"data", "inf", 0.0, true});
  ended.phase = Phase::kData;
  ended.is_view = ended.failed = ended.captured = true;
  EXPECT_TRUE(sink.end(second, std::move(ended)));
  EXPECT_FALSE(sink.end(second, {}));  // once
  sink.add_sink("loss", "loss", tensor(&b), 3);
  EXPECT_TRUE(sink.end(first, {}));
  const Trace t = sink.take();
  ASSERT_EQ(t.ops.size(), 2u);
  ASSERT_EQ(t.storages.size(), 2u);
  EXPECT_EQ(t.ops[0].inputs[0].storage, t.ops[0].inputs[3].storage);
  EXPECT_NE(t.ops[0].inputs[0].storage, t.ops[0].inputs[2].storage);
  EXPECT_EQ(t.ops[0].inputs[1].storage, kNone);
  EXPECT_EQ(t.ops[0].scalars.size(), 1u);
  EXPECT_EQ(t.ops[0].end_order, 2u);
  EXPECT_EQ(t.ops[1].parent, 0u);
  EXPECT_EQ(t.ops[1].end_order, 1u);
  EXPECT_EQ(t.ops[1].outputs[0].storage, t.ops[0].inputs[2].storage);
  EXPECT_EQ(t.ops[1].scalars.size(), 1u);
  EXPECT_EQ(t.ops[1].phase, Phase::kData);
  EXPECT_TRUE(t.ops[1].is_view && t.ops[1].failed && t.ops[1].captured);
  ASSERT_EQ(t.sinks.size(), 1u);
  EXPECT_EQ(t.sinks[0].at_end_order, 2u);  // only what ended before it counts
  EXPECT_EQ(t.sinks[0].micro_batch, 3u);
}

TEST(EventSink, RereadInputHasItsValueOfThen) {
  int a;
  EventSink sink;
  sink.start();
  BeginOp begun = op(sink, "log");
  begun.inputs = {tensor(&a), tensor(&a)};
  begun.inputs[1].use.arg = "other";
  const auto open = sink.begin(std::move(begun));
  EndOp ended;
  TensorUse again;
  again.health.numel = 4;
  again.health.nan = 1;
  again.first_bad = 2;
  again.bad_rows = {2};
  ended.inputs.emplace_back(1, again);
  ended.inputs.emplace_back(7, again);  // there is no such input
  EXPECT_TRUE(sink.end(open, std::move(ended)));
  const Trace t = sink.take();
  const TensorUse& other = t.ops.at(0).inputs.at(1);
  EXPECT_EQ(other.health.nan, 1u);
  EXPECT_EQ(other.first_bad, 2);
  EXPECT_EQ(other.bad_rows, std::vector<std::int64_t>{2});
  EXPECT_EQ(other.arg, "other");
  EXPECT_NE(other.storage, kNone);
  EXPECT_EQ(t.ops[0].inputs[0].health.nan, 0u);
}

TEST(EventSink, StacksAreSharedAndNotInheritedFromNodes) {
  EventSink sink;
  sink.start();
  const std::uint32_t here = sink.stack({{{"/a.py", 3, "f"}}, "M", ""});
  EXPECT_EQ(sink.stack({{{"/a.py", 3, "f"}}, "M", ""}), here);
  EXPECT_NE(sink.stack({{{"/a.py", 4, "f"}}, "M", ""}), here);
  EXPECT_NE(sink.stack({{{"/a.py", 3, "f"}}, "N", ""}), here);
  EXPECT_EQ(sink.stack({}), kNone);
  BeginOp outer = op(sink, "outer"), node = op(sink, "Node");
  outer.op.stack = node.op.stack = here;
  node.op.is_node = true;
  const OpId outer_id = sink.begin(std::move(outer)).op, node_id = sink.begin(std::move(node)).op;
  sink.begin(op(sink, "inner", outer_id));
  sink.begin(op(sink, "backward", node_id));
  const Trace t = sink.take();
  EXPECT_EQ(t.ops[2].stack, here);
  EXPECT_EQ(t.ops[3].stack, kNone);
  EXPECT_EQ(t.stacks.size(), 3u);
}

TEST(EventSink, NodesFindTheForwardOpThatMadeThem) {
  EventSink sink;
  sink.start();
  const auto inner = sink.begin(op(sink, "aten::log")), later = sink.begin(op(sink, "aten::detach"));
  EndOp makes;
  makes.makes = {77};
  sink.end(inner, std::move(makes));
  EndOp again;
  again.makes = {77};
  sink.end(later, std::move(again));  // the innermost, which ended first, is the one
  BeginOp custom = op(sink, "Function");
  custom.makes = 78;
  sink.begin(std::move(custom));
  for (const NodeKey key : {77, 78, 79}) {
    BeginOp node = op(sink, "Node");
    node.of_node = key;
    sink.begin(std::move(node));
  }
  const Trace t = sink.take();
  EXPECT_EQ(t.ops[3].forward, 0u);
  EXPECT_EQ(t.ops[4].forward, 2u);
  EXPECT_EQ(t.ops[5].forward, kNone);
}

TEST(EventSink, NamesStorages) {
  int a, b;
  EventSink sink;
  sink.start();
  sink.name_memory(&a, Origin::kBatch, "batch[0]", 5);
  sink.name_memory(nullptr, Origin::kBatch, "nothing");
  BeginOp begun = op(sink, "mul");
  begun.inputs = {tensor(&a), tensor(&b)};
  begun.inputs[1].constant = true;
  sink.begin(std::move(begun));
  const Trace t = sink.take();
  ASSERT_EQ(t.storages.size(), 2u);
  EXPECT_EQ(t.storages[0].name, "batch[0]");
  EXPECT_EQ(t.storages[0].origin, Origin::kBatch);
  EXPECT_EQ(t.storages[0].stack, 5u);
  EXPECT_EQ(t.storages[1].origin, Origin::kConstant);
}

TEST(EventSink, TokenOfAnotherTraceIsRefused) {
  EventSink sink;
  sink.start();
  const auto old = sink.begin(op(sink, "old"));
  BeginOp orphan = op(sink, "orphan", old.op);
  sink.clear();
  sink.begin(op(sink, "first"));
  sink.begin(std::move(orphan));  // what it was inside of is gone; op 0 of this trace is not it
  EXPECT_FALSE(sink.end(old, {}));
  BeginOp wild = op(sink, "wild", 1000);
  sink.begin(std::move(wild));
  EXPECT_FALSE(sink.end({1000, sink.generation()}, {}));
  const Trace t = sink.take();
  ASSERT_EQ(t.ops.size(), 3u);
  EXPECT_EQ(t.ops[0].end_order, 0u);
  EXPECT_EQ(t.ops[1].parent, kNone);
  EXPECT_EQ(t.ops[2].parent, kNone);
}

TEST(EventSink, PastItsLimitItDropsAndCounts) {
  EventSink sink({.ops = 3}, {});
  sink.start();
  std::vector<EventSink::Token> tokens;
  for (int i = 0; i < 10; ++i) tokens.push_back(sink.begin(op(sink, "op")));
  EXPECT_TRUE(sink.full());
  EXPECT_EQ(sink.dropped(), 7u);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(sink.end(tokens[static_cast<std::size_t>(i)], {}), i < 3);
  const Trace t = sink.take();
  EXPECT_TRUE(t.truncated);
  EXPECT_EQ(t.ops.size(), 3u);
  EXPECT_EQ(sink.dropped(), 0u);
  EXPECT_FALSE(sink.full());
  EXPECT_TRUE(sink.begin(op(sink, "op")));
  EXPECT_FALSE(sink.take().truncated);
}

TEST(EventSink, AnEndlessStepStaysWithinItsMemory) {
  constexpr std::size_t kBytes = 1 << 18;
  std::vector<char> memory(40'000);
  EventSink sink({.bytes = kBytes}, {});
  sink.start();
  for (std::size_t i = 0; i < 20'000; ++i) {
    BeginOp begun = op(sink, "aten::some_operator_with_a_long_name");
    begun.op.stack = sink.stack({{{"/file.py", static_cast<int>(i), "f"}}, "", ""});
    begun.inputs = {tensor(&memory[i]), tensor(&memory[i + 1])};
    EndOp ended;
    ended.outputs = {tensor(&memory[i + 2])};
    ended.makes = {i};
    sink.end(sink.begin(std::move(begun)), std::move(ended));
    sink.name_memory(&memory[i], Origin::kBatch, "batch");
  }
  EXPECT_LE(sink.bytes(), kBytes + 4096);
  const std::uint64_t dropped = sink.dropped();
  const Trace t = sink.take();
  EXPECT_TRUE(t.truncated);
  EXPECT_EQ(t.ops.size() + dropped, 20'000u);
  EXPECT_GT(t.ops.size(), 80u);
  EXPECT_LT(t.storages.size(), 3 * t.ops.size() + 4);
}

// -- several threads ---------------------------------------------------------------------------------

// Counts like a weak reference does. One per storage; several sinks may hold it.
struct Held {
  std::atomic<int> count = 0;
};
void hold(void* memory) { static_cast<Held*>(memory)->count.fetch_add(1); }
void release(void* memory) { static_cast<Held*>(memory)->count.fetch_sub(1); }

// What the armed observer does on one thread: nested ops, each with an input and an output.
void work(EventSink& sink, std::vector<Held>& memory, int thread, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    BeginOp outer = op(sink, "thread" + std::to_string(thread));
    outer.op.micro_batch = static_cast<std::uint32_t>(i);
    outer.op.stack = sink.stack({{{"/a.py", i % 7, "f"}}, "", ""});
    outer.inputs = {tensor(&memory[static_cast<std::size_t>(i) % memory.size()])};
    const auto token = sink.begin(std::move(outer));
    BeginOp inner = op(sink, "inner" + std::to_string(thread), token.op);
    inner.generation = token.generation;
    const auto inside = sink.begin(std::move(inner));
    EndOp ended;
    ended.outputs = {tensor(&memory[static_cast<std::size_t>(i + thread) % memory.size()])};
    ended.makes = {static_cast<NodeKey>(thread) << 32 | static_cast<NodeKey>(i)};
    if (inside) sink.end(inside, std::move(ended));
    if (token) sink.end(token, {});
    if (i % 16 == 0) sink.add_sink("gradient", "g", tensor(&memory[0]), 0);
    if (i % 8 == 0) sink.name_memory(&memory[1], Origin::kParameter, "w");
  }
}

// Every trace holds together, whatever was going on while it was taken.
void check(const Trace& trace) {
  std::vector<bool> ranks(trace.ops.size() + 1);
  for (std::size_t i = 0; i < trace.ops.size(); ++i) {
    const Op& o = trace.ops[i];
    if (o.parent != kNone) {
      ASSERT_LT(o.parent, i);
      EXPECT_EQ("thread" + o.name.substr(5), trace.ops[o.parent].name) << "a parent on another thread";
      EXPECT_EQ(o.stack, trace.ops[o.parent].stack);
      if (o.end_order != 0 && trace.ops[o.parent].end_order != 0) {
        EXPECT_LT(o.end_order, trace.ops[o.parent].end_order);
      }
    }
    ASSERT_LE(o.end_order, trace.ops.size());
    if (o.end_order != 0) {
      EXPECT_FALSE(ranks[o.end_order]) << "two ops with one rank";
      ranks[o.end_order] = true;
    }
    for (const auto* uses : {&o.inputs, &o.outputs}) {
      for (const TensorUse& use : *uses) ASSERT_LT(use.storage, trace.storages.size());
    }
    if (o.stack != kNone) {
      ASSERT_LT(o.stack, trace.stacks.size());
    }
  }
  // The file format's reader checks the rest.
  Trace again;
  std::string error;
  EXPECT_TRUE(from_jsonl(to_jsonl(trace), &again, &error)) << error;
}

TEST(EventSink, StackOfAGoneTraceIsNotReused) {
  EventSink sink({}, {});
  sink.start();
  BeginOp late = op(sink, "late");
  late.op.stack = sink.stack({{{"/a.py", 1, "f"}}, "", ""});
  sink.take();
  sink.stack({{{"/b.py", 2, "f"}}, "", ""});
  sink.begin(std::move(late));
  EXPECT_EQ(sink.take().ops.at(0).stack, kNone);
}

// Whose memory is given back is asked where it matters, and the place of each is kept as it was first seen.
TEST(EventSink, StoragesGivenBackAreMarked) {
  static std::map<void*, std::uint64_t> places;
  const auto place = [](void* memory, std::uint64_t* address, std::int64_t* size_bytes) {
    const auto it = places.find(memory);
    if (it == places.end()) return false;
    *address = it->second;
    *size_bytes = 64;
    return true;
  };
  std::vector<Held> memory(2);
  places = {{&memory[0], 0x1000}, {&memory[1], 0x2000}};
  EventSink sink({}, {&hold, &release, place});
  sink.start();
  BeginOp first = op(sink, "first");
  first.inputs = {tensor(&memory[0]), tensor(&memory[1])};
  sink.end(sink.begin(std::move(first)), {});
  sink.ask_who_is_freed();
  places.erase(&memory[1]);
  sink.begin(op(sink, "second"));
  sink.ask_who_is_freed();
  const Trace trace = sink.take();
  ASSERT_EQ(trace.storages.size(), 2u);
  EXPECT_EQ(trace.storages[0].address, 0x1000u);
  EXPECT_EQ(trace.storages[0].size_bytes, 64);
  EXPECT_EQ(trace.storages[0].freed_before, kNone);
  EXPECT_EQ(trace.storages[1].freed_before, 2u);
  EXPECT_EQ(trace.freed_asked_at, (std::vector<OpId>{1, 2}));
}

TEST(EventSink, ThreadsAppendInOneGlobalOrder) {
  constexpr int kThreads = 4, kRounds = 400;
  std::vector<Held> memory(64);
  {
    EventSink sink({}, {&hold, &release});
    sink.start();
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) threads.emplace_back([&, t] { work(sink, memory, t, kRounds); });
    for (auto& t : threads) t.join();
    for (const Held& h : memory) EXPECT_EQ(h.count, 1);
    const Trace trace = sink.take();
    for (const Held& h : memory) EXPECT_EQ(h.count, 0);
    check(trace);
    ASSERT_EQ(trace.ops.size(), 2u * kThreads * kRounds);
    EXPECT_EQ(trace.stacks.size(), 7u);
    EXPECT_FALSE(trace.truncated);
    std::map<std::string, std::uint32_t> next;  // of each thread, its own order is kept
    for (const Op& o : trace.ops) {
      EXPECT_NE(o.end_order, 0u);
      if (o.parent == kNone) {
        EXPECT_EQ(o.micro_batch, next[o.name]++);
      }
    }
    EXPECT_EQ(next.size(), static_cast<std::size_t>(kThreads));
  }
  for (const Held& h : memory) EXPECT_EQ(h.count, 0);
}

TEST(EventSink, StartStopClearAndTakeWhileThreadsAppend) {
  std::vector<Held> memory(16);
  std::atomic<std::size_t> taken = 0;
  {
    EventSink sink({.ops = 500}, {&hold, &release});
    std::atomic<int> running = 3;
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        work(sink, memory, t, 600);
        running.fetch_sub(1);
      });
    }
    for (int round = 0; running.load() > 0; ++round) {
      sink.start();
      std::this_thread::yield();
      if (round % 5 == 1) sink.clear();
      if (round % 3 == 0) {
        const Trace trace = sink.take();
        EXPECT_LE(trace.ops.size(), 500u);
        check(trace);
        taken += trace.ops.size();
      }
      if (round % 2 == 0) sink.stop();
      EXPECT_LE(sink.num_ops(), 500u);
      EXPECT_GE(sink.bytes() + 1, 1u);
      sink.dropped();
    }
    for (auto& t : threads) t.join();
    check(sink.take());
  }
  for (const Held& h : memory) EXPECT_EQ(h.count, 0);  // what was held was let go, each as often
}

TEST(EventSink, PastTheBoundThreadsCountTogether) {
  constexpr int kThreads = 4, kEach = 1000;
  EventSink sink({.ops = 100}, {});
  sink.start();
  std::vector<std::thread> threads;
  std::atomic<int> begun = 0;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) {
        if (sink.full())
          sink.drop();
        else if (sink.begin(op(sink, "op")))
          begun.fetch_add(1);
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(begun, 100);
  EXPECT_EQ(sink.dropped(), static_cast<std::uint64_t>(kThreads * kEach - 100));
  EXPECT_TRUE(sink.take().truncated);
}

}  // namespace
}  // namespace finitude::record
