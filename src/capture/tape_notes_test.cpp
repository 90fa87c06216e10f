#include "capture/tape_notes.h"

#include <gtest/gtest.h>

#include <random>

#include "base/checksum.h"
#include "capture/tape_file.h"
#include "capture/testing.h"

namespace finitude::capture {
namespace {

TEST(TapeNotes, ComeBackAsTheyWere) {
  const std::string file = write_tape(sample_tape_with_notes());
  Tape tape;
  ASSERT_EQ(read_tape(file, &tape).why(), "");
  EXPECT_EQ(write_tape(tape), file);
  ASSERT_EQ(tape.places.size(), 2u);
  EXPECT_EQ(tape.places[0].file, "/project/train.py");
  EXPECT_EQ(tape.places[0].line, 12u);
  EXPECT_EQ(tape.places[0].source, "loss = (w * 3).sum()");
  EXPECT_EQ(tape.places[0].module, "");
  EXPECT_EQ(tape.places[1].module, "Net.head.0");
  EXPECT_EQ(tape.entries[0].place, kNoPlace);
  EXPECT_EQ(tape.entries[2].place, 1u);
  EXPECT_FALSE(tape.entries[2].of_backward);
  EXPECT_EQ(tape.entries[3].place, 0u);
  EXPECT_TRUE(tape.entries[3].of_backward);
  EXPECT_TRUE(tape.outcomes[0].flaws.known);
  EXPECT_EQ(tape.outcomes[0].flaws.nan, 3u);
  EXPECT_EQ(tape.outcomes[0].flaws.inf, 1u);
  EXPECT_EQ(tape.outcomes[0].sample_every, 2u);
  EXPECT_EQ(tape.outcomes[0].sample, "01234567");
  ASSERT_EQ(tape.exchanges.size(), 2u);
  EXPECT_EQ(tape.exchanges[0].before, 3u);
  EXPECT_EQ(tape.exchanges[0].op, "c10d::allreduce_");
  EXPECT_EQ(tape.exchanges[0].place, 0u);
  EXPECT_TRUE(tape.exchanges[0].of_backward);
  ASSERT_EQ(tape.exchanges[0].args.size(), 2u);
  EXPECT_EQ(tape.exchanges[0].args[0].items.at(0).tensors.at(0).storage, 2u);
  EXPECT_EQ(tape.exchanges[0].args[1].text, "0");
  EXPECT_EQ(tape.exchanges[1].before, tape.entries.size());
  EXPECT_EQ(tape.exchanges[1].place, kNoPlace);
}

// The promise to readers of before: all but offset 48 and the checksum of the header is where it was.
TEST(TapeNotes, StandBehindWhatWasThereBefore) {
  const std::string plain = write_tape(sample_tape()), noted = write_tape(sample_tape_with_notes());
  ASSERT_GT(noted.size(), plain.size());
  EXPECT_EQ(noted.substr(0, 48), plain.substr(0, 48));
  EXPECT_EQ(noted.substr(64, plain.size() - 64), plain.substr(64));
  EXPECT_EQ(plain.substr(48, 8), std::string(8, '\0'));
  const std::string notes = write_notes(sample_tape_with_notes());
  EXPECT_EQ(noted.substr((plain.size() + 63) / 64 * 64), notes);
  EXPECT_EQ(write_notes(sample_tape()), "");
}

TEST(TapeNotes, PartsOfLaterVersionsAreSkipped) {
  Tape tape = sample_tape();
  std::string parts;
  WireWriter out(&parts);
  out.var(1);
  out.var(99);
  out.text("what nobody knows yet");
  std::string notes;
  WireWriter(&notes).u64(base::checksum(parts.data(), parts.size()));
  EXPECT_TRUE(read_notes(notes + parts, &tape));
  EXPECT_TRUE(tape.places.empty());
}

TEST(TapeNotes, EveryCutAndEveryFlippedBitIsReported) {
  const Tape noted = sample_tape_with_notes();
  const std::string notes = write_notes(noted);
  for (std::size_t size = 0; size < notes.size(); ++size) {
    Tape tape = sample_tape();
    EXPECT_FALSE(read_notes(notes.substr(0, size), &tape)) << size;
    EXPECT_TRUE(tape.places.empty());
  }
  for (std::size_t i = 0; i < notes.size(); ++i) {
    std::string changed = notes;
    changed[i] = static_cast<char>(changed[i] ^ (1 << (i % 8)));
    Tape tape = sample_tape();
    EXPECT_FALSE(read_notes(changed, &tape)) << i;
  }
}

// With a checksum that fits: whatever they say, indices stay inside, and reading ends.
TEST(TapeNotes, MutationsAreBounded) {
  const std::string notes = write_notes(sample_tape_with_notes());
  std::mt19937_64 random(7);
  std::size_t accepted = 0;
  for (int round = 0; round < 50'000; ++round) {
    std::string parts = notes.substr(8);
    for (std::uint64_t n = 1 + random() % 3; n > 0; --n)
      parts[random() % parts.size()] = static_cast<char>(random() % 3 == 0 ? 0xff : random());
    std::string changed;
    WireWriter(&changed).u64(base::checksum(parts.data(), parts.size()));
    Tape tape = sample_tape();
    accepted += read_notes(changed + parts, &tape);
    for (const Exchange& exchange : tape.exchanges) {
      ASSERT_LE(exchange.before, tape.entries.size());
      ASSERT_TRUE(exchange.place == kNoPlace || exchange.place < tape.places.size());
      for_each_tensor(exchange.args, [&](const TensorRef& t) {
        ASSERT_TRUE(t.storage == kNoStorage || t.storage < tape.storages.size());
      });
    }
    for (const Entry& entry : tape.entries) ASSERT_TRUE(entry.place == kNoPlace || entry.place < tape.places.size());
  }
  EXPECT_GT(accepted, 100u);
  EXPECT_LT(accepted, 50'000u);
}

}  // namespace
}  // namespace finitude::capture
