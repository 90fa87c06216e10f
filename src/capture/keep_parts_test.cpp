#include "capture/keep_parts.h"

#include <gtest/gtest.h>

#include "capture/tape_file.h"

namespace finitude::capture {
namespace {

Tape table_of(std::size_t size, std::vector<ByteRange> parts) {
  Tape tape;
  Storage& storage = tape.storages.emplace_back();
  storage.origin = Storage::kInput;
  storage.size_bytes = size;
  for (std::size_t i = 0; i < size; ++i) storage.bytes += static_cast<char>(i % 251);
  storage.parts = std::move(parts);
  Entry& random = tape.entries.emplace_back();
  random.kind = Entry::kRandom;
  tape.operators.push_back({"aten::index", "Tensor"});
  Entry& call = tape.entries.emplace_back();
  Value& value = call.args.emplace_back();
  value.kind = Value::kTensor;
  TensorRef& ref = value.tensors.emplace_back();
  ref.storage = 0;
  return tape;
}

TEST(KeepParts, OnlyReadRowsOfATableAreKept) {
  Tape tape = table_of(4096, {{64, 128}, {1024, 1030}});
  const std::string bytes = tape.storages[0].bytes;
  keep_parts(tape);
  EXPECT_EQ(tape.storages[0].origin, Storage::kBlank);
  EXPECT_EQ(tape.storages[0].size_bytes, 4096u);
  EXPECT_TRUE(tape.storages[0].bytes.empty());
  ASSERT_EQ(tape.entries.size(), 4u);
  EXPECT_EQ(tape.entries[0].kind, Entry::kRandom);  // what decides on the rows comes first
  EXPECT_EQ(tape.entries[1].kind, Entry::kFill);
  EXPECT_EQ(tape.entries[1].offset, 64u);
  EXPECT_EQ(tape.entries[1].bytes, bytes.substr(64, 64));
  EXPECT_EQ(tape.entries[2].offset, 1024u);
  EXPECT_EQ(tape.entries[2].bytes, bytes.substr(1024, 6));
  EXPECT_EQ(tape.entries[3].kind, Entry::kCall);
  Tape again;
  ASSERT_TRUE(read_tape(write_tape(tape), &again).ok());
  EXPECT_EQ(again.entries[2].bytes, bytes.substr(1024, 6));
  EXPECT_EQ(again.storages[0].origin, Storage::kBlank);
}

TEST(KeepParts, ExchangesStayBeforeTheirEntries) {
  Tape tape = table_of(4096, {{64, 128}});
  tape.exchanges = {{1, "c10d::barrier", {}, kNoPlace, false},
                    {1, "c10d::send", tape.entries[1].args, kNoPlace, false},
                    {2, "c10d::recv_", {}, kNoPlace, false}};
  keep_parts(tape);
  ASSERT_EQ(tape.entries.size(), 3u);
  EXPECT_EQ(tape.entries[1].kind, Entry::kFill);
  EXPECT_EQ(tape.exchanges[0].before, 1u);
  EXPECT_EQ(tape.exchanges[1].before, 2u);  // what it sends was filled in
  EXPECT_EQ(tape.exchanges[2].before, 3u);
}

TEST(KeepParts, NamedOrMostlyReadMemoryStaysWhole) {
  Tape weights = table_of(4096, {{0, 64}});
  weights.storages[0].kind = "parameter";
  weights.storages[0].name = "table";
  Tape batch = table_of(4096, {{0, 64}});
  batch.storages[0].kind = "batch";
  Tape most = table_of(4096, {{0, 2000}});
  Tape whole = table_of(4096, {});
  for (Tape* tape : {&weights, &batch, &most, &whole}) {
    keep_parts(*tape);
    EXPECT_EQ(tape->storages[0].origin, Storage::kInput);
    EXPECT_EQ(tape->storages[0].bytes.size(), 4096u);
    EXPECT_EQ(tape->entries.size(), 2u);
  }
}

TEST(KeepParts, PartsThatCannotBeAreNotTaken) {
  for (const auto& parts : std::vector<std::vector<ByteRange>>{{{4000, 5000}}, {{100, 90}}, {{200, 300}, {250, 260}}}) {
    Tape tape = table_of(4096, parts);
    keep_parts(tape);
    EXPECT_EQ(tape.storages[0].origin, Storage::kInput);
  }
}

}  // namespace
}  // namespace finitude::capture
