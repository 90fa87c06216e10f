#include "capture/tape_file.h"

#include <gtest/gtest.h>

#include <random>

#include "base/checksum.h"
#include "capture/testing.h"

namespace finitude::capture {
namespace {

TEST(TapeFile, ComesBackAsItWas) {
  const std::string file = write_tape(sample_tape());
  Tape tape;
  ASSERT_EQ(read_tape(file, &tape).why(), "");
  EXPECT_EQ(write_tape(tape), file);
  EXPECT_EQ(tape.storages[0].bytes, "0123456789abcdef");
  EXPECT_EQ(tape.storages[3].external, "buffer.mean");
  EXPECT_EQ(tape.entries[3].args[0].items[1].tensors[0].strides, (std::vector<std::int64_t>{1, 3}));
  EXPECT_EQ(tape.entries[3].args[5].items[0].number, -7);
  EXPECT_TRUE(std::signbit(tape.entries[3].args[1].real));
  EXPECT_EQ(tape.outcomes[0].checksum, 0x1234567890abcdefu);
}

// Layouts are a promise: what version 1 wrote is read by every program of this major version.
TEST(TapeFile, HeaderIsAsDocumented) {
  const std::string file = write_tape(sample_tape());
  ASSERT_GT(file.size(), kTapeHeaderBytes);
  EXPECT_EQ(file.substr(0, 8), "FitTape\n");
  EXPECT_EQ(file.substr(8, 8), std::string("\1\0\0\0\x40\0\0\0", 8));
  WireReader in(std::string_view(file).substr(16));
  const std::uint64_t body = in.u64();
  EXPECT_EQ(in.u64(), base::checksum(file.data() + 64, body));
  EXPECT_EQ(in.u64(), 16u);
  EXPECT_EQ(file.size(), (64 + body + 63) / 64 * 64 + 16);
  EXPECT_EQ(file.substr(file.size() - 16), "0123456789abcdef");
}

TEST(TapeFile, DevicesComeBack) {
  const std::string file = write_tape(sample_tape_of_gpus());
  EXPECT_EQ(file[8], 2);
  Tape tape;
  ASSERT_EQ(read_tape(file, &tape).why(), "");
  EXPECT_EQ(write_tape(tape), file);
  EXPECT_EQ(tape.devices, (std::vector<std::string>{"cpu", "cuda:0", "cuda:1"}));
  EXPECT_EQ(tape.storages[0].device, 1);
  EXPECT_EQ(tape.storages[1].device, 2);
  EXPECT_EQ(tape.storages[3].device, 0);
  ASSERT_EQ(tape.generators.size(), 3u);
  EXPECT_EQ(tape.generators[1].device, 1);
  EXPECT_TRUE(tape.generators[1].is_default);
  EXPECT_FALSE(tape.generators[2].is_default);
  EXPECT_EQ(main_device(tape), "cuda:0");
  EXPECT_EQ(main_device(sample_tape()), "cpu");
  EXPECT_TRUE(generator_home(tape, 0).is_default && !generator_home(tape, 7).is_default);
}

TEST(TapeFile, DevicesThatCannotBeAreReported) {
  Tape tape;
  for (const char* name : {"", "cuda:", "cuda:x", "cuda:1234", "CUDA", "cuda 0", "cu\nda", ":0", "cuda:-1"}) {
    Tape bad = sample_tape_of_gpus();
    bad.devices[1] = name;
    EXPECT_FALSE(read_tape(write_tape(bad), &tape).ok()) << name;
  }
  Tape bad = sample_tape_of_gpus();
  bad.storages[2].device = 3;
  EXPECT_FALSE(read_tape(write_tape(bad), &tape).ok());
  bad = sample_tape_of_gpus();
  bad.generators[0].device = 3;
  EXPECT_FALSE(read_tape(write_tape(bad), &tape).ok());
}

TEST(TapeFile, EveryCutIsReported) {
  const std::string file = write_tape(sample_tape());
  Tape tape;
  for (std::size_t size = 0; size < file.size(); ++size)
    EXPECT_NE(read_tape(file.substr(0, size), &tape).why(), "") << size;
}

TEST(TapeFile, EveryFlippedBitIsReported) {
  const std::string file = write_tape(sample_tape());
  Tape before, tape;
  ASSERT_TRUE(read_tape(file, &before).ok());
  std::size_t reported = 0;
  for (std::size_t i = 0; i < file.size(); ++i) {
    std::string changed = file;
    changed[i] = static_cast<char>(changed[i] ^ (1 << (i % 8)));
    reported += !read_tape(changed, &tape).ok();
  }
  // Between the body and the data lie up to 63 bytes that mean nothing.
  EXPECT_GE(reported + 63, file.size());
}

// A body with checksums that fit, changed at random: whatever it says, reading it ends, in bounded memory.
class TapeMutations : public testing::TestWithParam<Tape (*)()> {};
INSTANTIATE_TEST_SUITE_P(TapeFile, TapeMutations, testing::Values(&sample_tape, &sample_tape_of_gpus));

TEST_P(TapeMutations, AHundredThousandAreRead) {
  const std::string file = write_tape(GetParam()());
  WireReader header(std::string_view(file).substr(16));
  const std::size_t body_bytes = static_cast<std::size_t>(header.u64());
  std::mt19937_64 random(20240607);
  std::size_t accepted = 0;
  for (int round = 0; round < 100'000; ++round) {
    std::string changed = file;
    for (std::uint64_t n = 1 + random() % 4; n > 0; --n) {
      changed[kTapeHeaderBytes + random() % body_bytes] = static_cast<char>(random() % 3 == 0 ? 0xff : random());
    }
    std::string sums = changed.substr(0, 24);
    WireWriter out(&sums);
    out.u64(base::checksum(changed.data() + kTapeHeaderBytes, body_bytes));
    sums += changed.substr(32, 24);
    out.u64(base::checksum(sums.data(), sums.size()));
    changed.replace(0, kTapeHeaderBytes, sums);
    Tape tape;
    if (!read_tape(changed, &tape).ok()) continue;
    ++accepted;
    const std::string again = write_tape(tape);
    Tape second;
    ASSERT_TRUE(read_tape(again, &second).ok());
    ASSERT_EQ(write_tape(second), again);
  }
  EXPECT_GT(accepted, 1000u);  // the mutations reach beyond the first check
  EXPECT_LT(accepted, 100'000u);
}

TEST(TapeFile, CountsBeyondTheFileAllocateNothing) {
  std::string body;
  WireWriter out(&body);
  out.var(0);
  out.var(std::uint64_t{1} << 60);
  WireReader in(body);
  EXPECT_EQ(in.count(), 0u);
  EXPECT_EQ(in.count(), 0u);
  EXPECT_FALSE(in.ok());
}

TEST(Wire, NumbersComeBack) {
  std::string bytes;
  WireWriter out(&bytes);
  const std::vector<std::int64_t> numbers = {0, -1, 1, 63, 64, -64, -65, INT64_MAX, INT64_MIN};
  for (const std::int64_t n : numbers) out.zigzag(n);
  for (const std::int64_t n : numbers) out.var(static_cast<std::uint64_t>(n));
  WireReader in(bytes);
  for (const std::int64_t n : numbers) EXPECT_EQ(in.zigzag(), n);
  for (const std::int64_t n : numbers) EXPECT_EQ(in.var(), static_cast<std::uint64_t>(n));
  EXPECT_TRUE(in.ok() && in.at_end());
  WireReader overlong(std::string_view("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"));
  overlong.var();
  EXPECT_FALSE(overlong.ok());
}

}  // namespace
}  // namespace finitude::capture
