#include "capture/step_statistics.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/checksum.h"
#include "capture/testing_trace.h"
#include "capture/wire.h"
#include "record/reported_range.h"
#include "record/trace_jsonl.h"

namespace finitude::capture {
namespace {

using record::Trace;

std::string with_sums(std::string_view body, std::uint32_t version = kStatisticsVersion) {
  std::string file;
  WireWriter out(&file);
  out.raw(kStatisticsMagic.data(), kStatisticsMagic.size());
  out.u64(version | std::uint64_t{kStatisticsHeaderBytes} << 32);
  out.u64(body.size());
  out.u64(base::checksum(body.data(), body.size()));
  out.u64(base::checksum(file.data(), file.size()));
  return file.append(body);
}

std::string why(std::string_view bytes) {
  Trace trace;
  return read_statistics(bytes, &trace).why();
}

// What is kept of a trace, put in the same order: frames beyond the innermost go.
Trace kept() {
  Trace t = sample_trace();
  t.stacks[0].frames.resize(1);
  return t;
}

std::uint32_t number_of(const Trace& trace, const std::string& storage) {
  const auto named = [&](const record::Storage& s) { return s.name == storage; };
  return static_cast<std::uint32_t>(std::find_if(trace.storages.begin(), trace.storages.end(), named) -
                                    trace.storages.begin());
}

TEST(StepStatistics, ComeBackAsTheyWere) {
  const std::string bytes = write_statistics(sample_trace(), false);
  Trace read;
  bool redacted = true;
  ASSERT_EQ(read_statistics(bytes, &read, &redacted).why(), "");
  EXPECT_FALSE(redacted);
  EXPECT_EQ(write_statistics(read, false), bytes);
  // Storages are numbered by their first use, those that nobody used are gone.
  Trace expected = kept();
  const std::uint32_t weight = number_of(read, "head.weight"), batch = number_of(read, "batch[0]");
  ASSERT_EQ(read.storages.size(), 2u);
  const auto renumber = [&](record::TensorUse& use) {
    if (use.storage != record::kNone) use.storage = use.storage == 0 ? weight : batch;
  };
  for (record::Op& op : expected.ops) {
    for (auto* uses : {&op.inputs, &op.outputs}) std::for_each(uses->begin(), uses->end(), renumber);
  }
  for (record::Sink& sink : expected.sinks) renumber(sink.value);
  expected.storages = read.storages;
  EXPECT_EQ(to_jsonl(read), to_jsonl(expected));
  EXPECT_EQ(read.storages[weight].origin, record::Origin::kParameter);
  EXPECT_EQ(read.ops[0].inputs[0].health.absmax, 1.5);
}

TEST(StepStatistics, WithoutArgumentsAndPlacesWhereRedacted) {
  const std::string bytes = write_statistics(sample_trace(), true);
  for (const char* reported : {"/home", "train.py", "forward", "1e-08", "mean", "eps"})
    EXPECT_EQ(bytes.find(reported), std::string::npos) << reported;
  Trace read;
  bool redacted = false;
  ASSERT_EQ(read_statistics(bytes, &read, &redacted).why(), "");
  EXPECT_TRUE(redacted);
  ASSERT_EQ(read.ops.size(), 3u);
  EXPECT_EQ(read.ops[0].inputs[0].health.nan, 1u);
  EXPECT_TRUE(read.ops[0].scalars.empty());
  EXPECT_EQ(read.stacks[read.ops[0].stack].module, "Classifier.head");
  EXPECT_TRUE(read.stacks[read.ops[0].stack].frames.empty());
}

TEST(StepStatistics, RedactedRangesThatRevealValuesAreOmitted) {
  sense::Health many;
  many.numel = 100;
  many.zero = 2;
  many.min = -1.5;
  many.max = many.absmax = 3;
  many.sum_sq = 90;
  struct {
    std::uint64_t numel, zero;
    double min, max, sum_sq;
    bool reported;
  } const cases[] = {{100, 2, -1.5, 3, 90, true}, {8, 0, -1.5, 3, 20, true},     {7, 0, -1.5, 3, 20, false},
                     {1, 0, 3, 3, 9, false},      {100, 93, -1.5, 3, 20, false}, {100, 0, 3, 3, 900, false},
                     {100, 50, 0, 3, 450, false}, {100, 0, -3, 3, 900, false},   {100, 0, -3, 3, 899, true},
                     {100, 100, 0, 0, 0, true}};
  for (const auto& one : cases) {
    Trace t = sample_trace();
    sense::Health& h = t.ops[0].inputs[0].health = many;
    h.numel = one.numel, h.zero = one.zero, h.min = one.min, h.max = one.max, h.sum_sq = one.sum_sq;
    h.absmax = std::max(-one.min, one.max);
    for (const bool redact : {false, true}) {
      Trace read;
      ASSERT_EQ(read_statistics(write_statistics(t, redact), &read).why(), "");
      const sense::Health& got = read.ops[0].inputs[0].health;
      EXPECT_EQ(record::has_range(got), one.reported || !redact) << one.numel << ' ' << one.zero << ' ' << one.min;
      EXPECT_EQ(got.zero, one.zero);
      EXPECT_EQ(got.max, one.reported || !redact ? one.max : 0);
      EXPECT_EQ(got.sum_sq, one.reported || !redact ? one.sum_sq : 0);
    }
  }
}

TEST(StepStatistics, TheSameTensorIsStoredOnce) {
  Trace t = sample_trace();
  const std::size_t before = write_statistics(t, false).size();
  t.ops.insert(t.ops.end(), 1000, t.ops[0]);
  EXPECT_LT(write_statistics(t, false).size(), before + 1000 * 48);
}

TEST(StepStatistics, TooLargeStepKeepsItsFirstOps) {
  Trace t = sample_trace();
  t.ops.erase(t.ops.begin() + 1, t.ops.end());
  t.ops[0].inputs.resize(2000, t.ops[0].inputs[0]);
  t.ops[0].inputs.back().bad_rows.assign(64, 7);
  for (std::size_t i = 0; i < 400; ++i) t.ops.push_back(t.ops[0]);
  const std::string bytes = write_statistics(t, false);
  Trace read;
  ASSERT_EQ(read_statistics(bytes, &read).why(), "");
  EXPECT_TRUE(read.truncated);
  EXPECT_GT(read.ops.size(), 50u);
  EXPECT_LT(read.ops.size(), t.ops.size());
  t.ops.resize(20);
  ASSERT_EQ(read_statistics(write_statistics(t, false), &read).why(), "");
  EXPECT_FALSE(read.truncated);
}

TEST(StepStatistics, DamageIsReported) {
  const std::string sound = write_statistics(sample_trace(), false);
  for (std::size_t at = 0; at < sound.size(); ++at) {
    std::string changed = sound;
    changed[at] ^= 4;
    EXPECT_NE(why(changed), "") << at;
    EXPECT_NE(why(std::string_view(sound).substr(0, at)), "") << at;
  }
  EXPECT_NE(why(sound + "x"), "");
  EXPECT_EQ(why(with_sums(sound.substr(kStatisticsHeaderBytes))), "");
  EXPECT_EQ(why(with_sums(sound.substr(kStatisticsHeaderBytes), 2)), "are of version 2; this program reads 1");
  EXPECT_EQ(why(with_sums("")), "are damaged: they say what cannot be");
}

TEST(StepStatistics, WhatWouldTakeTooMuchMemoryIsRefused) {
  // One tensor, and ops that name it again and again: three bytes of the file are hundreds in memory.
  std::string body;
  WireWriter out(&body);
  out.u8(0);
  out.var(2);
  out.text("");
  out.text("float32");
  out.var(0);
  out.var(0);
  out.var(1);  // tensors
  out.var(1);
  out.u8(0);
  for (int i = 0; i < 3; ++i) out.var(0);
  out.var(64);
  for (int i = 0; i < 64; ++i) out.var(1);
  const std::uint64_t uses = 1'000'000;
  out.var(1);  // ops
  for (int i = 0; i < 9; ++i) out.var(0);
  out.var(uses);
  for (std::uint64_t i = 0; i < uses; ++i) body.append(3, '\0');
  body.append(3, '\0');
  EXPECT_EQ(why(with_sums(body)), "are damaged: they say what cannot be");
  // Ten of them are fine.
  body.resize(body.size() - 3 - 3 * uses);
  body.resize(body.size() - 3);  // the count
  out.var(10);
  body.append(33, '\0');
  EXPECT_EQ(why(with_sums(body)), "");
}

TEST(StepStatistics, CountsThatDoNotAddUpAreRefused) {
  Trace t = sample_trace();
  t.ops[0].inputs[0].health.nan = 9;
  EXPECT_NE(why(write_statistics(t, false)), "");
  t = sample_trace();
  t.ops[0].inputs[0].health.max = -5;
  EXPECT_NE(why(write_statistics(t, false)), "");
}

}  // namespace
}  // namespace finitude::capture
