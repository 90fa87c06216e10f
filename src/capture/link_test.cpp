#include "capture/link.h"

#include <gtest/gtest.h>

#include "capture/testing.h"

namespace finitude::capture {
namespace {

std::vector<std::string> names(const Tape& tape) {
  std::vector<std::string> found;
  for (const Entry& e : tape.entries) {
    found.push_back(e.kind == Entry::kRandom ? "random"
                    : e.kind == Entry::kFill ? "fill"
                                             : tape.operators[e.number].name);
  }
  return found;
}
using Names = std::vector<std::string>;

TEST(Link, ACallAndWhatItReads) {
  RawBuilder b;
  const auto op = b.op("mul");
  const StorageId x = b.storage(8, "abcdefgh");
  const auto start = b.start(op, {tensor_value(x, {2})});
  const StorageId y = b.storage(8);
  b.end(start, {tensor_value(y, {2})});
  b.raw.outcomes.push_back({"loss", "loss", tensor_value(y, {2}), 5});
  const Tape tape = link(std::move(b.raw));
  EXPECT_EQ(names(tape), Names{"mul"});
  EXPECT_TRUE(tape.gaps.empty());
  ASSERT_EQ(tape.storages.size(), 2u);
  EXPECT_EQ(tape.storages[0].origin, Storage::kInput);
  EXPECT_EQ(tape.storages[0].bytes, "abcdefgh");
  EXPECT_EQ(tape.storages[1].origin, Storage::kProduced);
}

// Its memory is kept also where no call has it, and a call between two of them counts.
TEST(Link, ExchangesKeepTheirPlacesAmongTheCalls) {
  RawBuilder b;
  const auto op = b.op("mul");
  b.raw.places = {{"a.py", 1, ""}, {"a.py", 2, ""}};
  const StorageId unused = b.storage(8, "unusedxx"), x = b.storage(8, "abcdefgh"), sent = b.storage(8, "ABCDEFGH");
  b.fill(unused, "UNUSEDXX");
  b.exchange("c10d::send", {list_value({tensor_value(sent, {2})})}, 1, 1);
  const auto start = b.start(op, {tensor_value(x, {2})});
  const StorageId y = b.storage(8);
  b.end(start, {tensor_value(y, {2})});
  b.exchange("c10d::allreduce_", {list_value({tensor_value(y, {2})})});
  b.exchange("c10d::allreduce_", {list_value({tensor_value(unused, {2})})}, 2);  // of a thread that is not the step's
  b.fill(y, "summed.!");
  b.raw.outcomes.push_back({"loss", "loss", tensor_value(y, {2}), 5});
  const Tape tape = link(std::move(b.raw));
  EXPECT_TRUE(tape.gaps.empty());
  EXPECT_EQ(names(tape), (Names{"mul", "fill"}));
  ASSERT_EQ(tape.exchanges.size(), 2u);
  EXPECT_EQ(tape.exchanges[0].op, "c10d::send");
  EXPECT_EQ(tape.exchanges[0].before, 0u);
  ASSERT_EQ(tape.places.size(), 1u);
  EXPECT_EQ(tape.places[tape.exchanges[0].place].line, 2u);
  const StorageId kept = tape.exchanges[0].args.at(0).items.at(0).tensors.at(0).storage;
  ASSERT_LT(kept, tape.storages.size());
  EXPECT_EQ(tape.storages[kept].bytes, "ABCDEFGH");
  EXPECT_EQ(tape.exchanges[1].before, 1u);
  EXPECT_EQ(tape.exchanges[1].args.at(0).items.at(0).tensors.at(0).storage, tape.entries[1].number);
}

TEST(Link, OnlyLinesThatCallsComeFromAreKept) {
  RawBuilder b;
  const auto view = b.op("view"), mul = b.op("mul");
  b.raw.places = {{"a.py", 1, ""}, {"a.py", 2, ""}, {"a.py", 3, ""}};
  const StorageId x = b.storage(8, "abcdefgh");
  b.end(b.start(view, {tensor_value(x, {2})}, 1, 0), {tensor_value(x, {1, 2})});
  const auto forward = b.start(mul, {tensor_value(x, {2})}, 1, 2);
  const StorageId y = b.storage(8);
  b.end(forward, {tensor_value(y, {2})});
  const auto backward = b.start(mul, {tensor_value(y, {2})}, 1, 2, true);
  const StorageId z = b.storage(8);
  b.end(backward, {tensor_value(z, {2})});
  const auto nowhere = b.start(mul, {tensor_value(z, {2})});
  const StorageId w = b.storage(8);
  b.end(nowhere, {tensor_value(w, {2})});
  const Tape tape = link(std::move(b.raw));
  ASSERT_EQ(tape.places.size(), 1u);
  EXPECT_EQ(tape.places[0].line, 3u);
  ASSERT_EQ(tape.entries.size(), 3u);
  EXPECT_EQ(tape.entries[0].place, 0u);
  EXPECT_FALSE(tape.entries[0].of_backward);
  EXPECT_EQ(tape.entries[1].place, 0u);
  EXPECT_TRUE(tape.entries[1].of_backward);
  EXPECT_EQ(tape.entries[2].place, kNoPlace);
}

TEST(Link, ViewsAndHostReadsAreLeftOut) {
  RawBuilder b;
  const auto view = b.op("view"), item = b.op("item"), mul = b.op("mul");
  const StorageId x = b.storage(8, "abcdefgh");
  b.call(view, {tensor_value(x, {2})}, {tensor_value(x, {1, 2})});
  b.call(item, {tensor_value(x, {1})}, {int_value(4)});
  const auto start = b.start(mul, {tensor_value(x, {1, 2})});
  const StorageId y = b.storage(8);
  b.end(start, {tensor_value(y, {1, 2})});
  EXPECT_EQ(names(link(std::move(b.raw))), Names{"mul"});
}

TEST(Link, WrapperIsReplacedByWhatItCalls) {
  RawBuilder b;
  const auto mm = b.op("mm"), cast = b.op("cast");
  const StorageId x = b.storage(8, "abcdefgh");
  const auto outer = b.start(mm, {tensor_value(x, {2})});
  const auto casting = b.start(cast, {tensor_value(x, {2})});
  const StorageId half = b.storage(4);
  b.end(casting, {tensor_value(half, {2})});
  const auto inner = b.start(mm, {tensor_value(half, {2})});
  const StorageId y = b.storage(4);
  b.end(inner, {tensor_value(y, {2})});
  b.end(outer, {tensor_value(y, {2})});
  const Tape tape = link(std::move(b.raw));
  EXPECT_EQ(names(tape), (Names{"cast", "mm"}));
  EXPECT_EQ(tape.entries[1].args[0].tensors[0].storage, tape.entries[0].results[0].tensors[0].storage);
}

// An operator of a user's library asks for memory and fills it by a pointer, which nobody sees.
TEST(Link, MemoryAllocatedInsideIsMadeByItsFiller) {
  RawBuilder b;
  const auto own = b.op("my::soft"), empty = b.op("aten::empty_like"), zero = b.op("aten::zero_", 1),
             zeros = b.op("aten::zeros_like");
  const StorageId x = b.storage(8, "abcdefgh");
  const auto asks = [&](std::uint32_t outer_op, bool writes) {
    const auto outer = b.start(outer_op, {tensor_value(x, {2})});
    const auto inner = b.start(empty, {tensor_value(x, {2})});
    const StorageId y = b.storage(8);
    b.end(inner, {tensor_value(y, {2})});
    if (writes) b.call(zero, {tensor_value(y, {2})}, {tensor_value(y, {2})});
    b.end(outer, {tensor_value(y, {2})});
  };
  asks(own, false);
  asks(zeros, true);   // what writes it is on the tape
  asks(empty, false);  // hands on what it is given
  EXPECT_EQ(names(link(std::move(b.raw))), (Names{"my::soft", "aten::empty_like", "aten::zero_", "aten::empty_like"}));
}

TEST(Link, ValuesSavedBeforeAWriteComeFirst) {
  RawBuilder b;
  const auto sin = b.op("sin_", 1), clone = b.op("clone");
  const StorageId x = b.storage(8, "abcdefgh");
  const auto outer = b.start(sin, {tensor_value(x, {2})});
  const auto inner = b.start(clone, {tensor_value(x, {2})});
  const StorageId saved = b.storage(8);
  b.end(inner, {tensor_value(saved, {2})});
  b.end(outer, {tensor_value(x, {2})});
  EXPECT_EQ(names(link(std::move(b.raw))), (Names{"clone", "sin_"}));
}

TEST(Link, HookReadingAnUnreturnedResultComesAfter) {
  RawBuilder b;
  const auto exp = b.op("exp"), mul = b.op("mul");
  const StorageId x = b.storage(8, "abcdefgh");
  const auto outer = b.start(exp, {tensor_value(x, {2})});
  const StorageId y = b.storage(8, "as input");  // the recorder could not know better
  const auto inner = b.start(mul, {tensor_value(y, {2})});
  const StorageId packed = b.storage(8);
  b.end(inner, {tensor_value(packed, {2})});
  b.end(outer, {tensor_value(y, {2})});
  const Tape tape = link(std::move(b.raw));
  EXPECT_EQ(names(tape), (Names{"exp", "mul"}));
  EXPECT_EQ(tape.storages[1].origin, Storage::kProduced);
  EXPECT_TRUE(tape.storages[1].bytes.empty());
}

TEST(Link, InPlaceWritesInAListAreKept) {
  RawBuilder b;
  const auto add = b.op("_foreach_add_", 1);
  const StorageId x = b.storage(8, "abcdefgh"), y = b.storage(8, "ijklmnop");
  b.call(add, {list_value({tensor_value(x, {2}), tensor_value(y, {2})}), int_value(1)}, {});
  EXPECT_EQ(names(link(std::move(b.raw))), Names{"_foreach_add_"});
}

TEST(Link, UnwrittenMemoryAndGeneratorsKeepTheirPlace) {
  RawBuilder b;
  const auto empty = b.op("empty"), mul = b.op("mul"), rand = b.op("rand");
  const auto making = b.start(empty, {int_value(2)});
  const StorageId slot = b.storage(8);
  b.end(making, {tensor_value(slot, {2})});
  b.fill(slot, "12345678", 7);
  const auto start = b.start(mul, {tensor_value(slot, {2})});
  const StorageId y = b.storage(8);
  b.end(start, {tensor_value(y, {2})});
  b.random(0, "state");
  const auto drawing = b.start(rand, {int_value(2)});
  const StorageId z = b.storage(8);
  b.end(drawing, {tensor_value(z, {2})});
  const Tape tape = link(std::move(b.raw));
  EXPECT_EQ(names(tape), (Names{"empty", "fill", "mul", "random", "rand"}));
  EXPECT_EQ(tape.entries[1].traced, 7u);  // who handed it out, where nobody wrote it since
}

TEST(Link, APartOfAnInputMovesItsViews) {
  RawBuilder b;
  const auto mul = b.op("mul");
  const StorageId data = b.storage(1 << 20, std::string(64, 'x'));
  b.raw.storages[data].begin = 640;
  const auto start = b.start(mul, {tensor_value(data, {4}, 162)});
  const StorageId y = b.storage(16);
  b.end(start, {tensor_value(y, {4})});
  const Tape tape = link(std::move(b.raw));
  EXPECT_EQ(tape.entries[0].args[0].tensors[0].offset, 2);
  EXPECT_EQ(tape.storages[0].size_bytes, 64u);
}

TEST(Link, ThreadsDoNotMix) {
  RawBuilder b;
  const auto mul = b.op("mul");
  const StorageId x = b.storage(8, "abcdefgh");
  const auto first = b.start(mul, {tensor_value(x, {2})}, 1);
  const auto second = b.start(mul, {tensor_value(x, {2})}, 2);
  const StorageId y = b.storage(8), z = b.storage(8);
  b.end(first, {tensor_value(y, {2})});
  b.end(second, {tensor_value(z, {2})});
  EXPECT_EQ(names(link(std::move(b.raw))), (Names{"mul", "mul"}));
}

TEST(Link, ThreadsWithoutOutcomeAreOmitted) {
  RawBuilder b;
  const auto mul = b.op("mul"), load = b.op("load"), other = b.op("other");
  const StorageId w = b.storage(8, "abcdefgh");  // both models read it
  const auto loading = b.start(load, {}, 2);
  const StorageId x = b.storage(8);
  b.end(loading, {tensor_value(x, {2})});
  const auto alone = b.start(other, {tensor_value(w, {2})}, 3);
  const StorageId z = b.storage(8);
  b.end(alone, {tensor_value(z, {2})});
  b.start(other, {tensor_value(z, {2})}, 3);  // in the middle of it when the recorder stopped
  const auto start = b.start(mul, {tensor_value(x, {2}), tensor_value(w, {2})});
  const StorageId y = b.storage(8);
  b.end(start, {tensor_value(y, {2})});
  b.raw.outcomes.push_back({"loss", "loss", tensor_value(y, {2}), 5});
  const Tape tape = link(std::move(b.raw));
  EXPECT_EQ(names(tape), (Names{"load", "mul"}));
  EXPECT_EQ(tape.storages.size(), 3u);
  EXPECT_TRUE(tape.gaps.empty());
}

TEST(Link, WhatIsMissingIsReported) {
  RawBuilder b;
  const auto mul = b.op("aten::mul");
  const StorageId x = b.storage(8);  // seen, read, but its content was not kept
  const auto start = b.start(mul, {tensor_value(x, {2})});
  const StorageId y = b.storage(8);
  b.end(start, {tensor_value(y, {2})});
  b.start(mul, {});
  const Tape tape = link(std::move(b.raw));
  ASSERT_EQ(tape.gaps.size(), 2u);
  EXPECT_EQ(tape.gaps[0], "a call did not end: aten::mul");
  RawTape damaged;
  damaged.events = "\x07 nonsense";
  EXPECT_EQ(link(std::move(damaged)).gaps, Names{"its events are damaged"});
}

}  // namespace
}  // namespace finitude::capture
