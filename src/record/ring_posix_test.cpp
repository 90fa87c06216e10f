#include "record/ring_posix.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "base/checksum.h"

#if __has_include(<rapidcheck/gtest.h>)
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>
#define FINITUDE_HAS_RAPIDCHECK
#endif

namespace finitude::record {
namespace {

namespace fs = std::filesystem;

// A record of which every field follows from its step, so that a mixture of two would show.
StepRecord record_of(std::uint64_t step) {
  const std::uint64_t seed = base::checksum(&step, sizeof step);
  StepRecord r;
  r.step = step;
  r.optimizer = static_cast<std::uint32_t>(seed);
  r.flags = static_cast<std::uint32_t>(seed >> 32);
  r.loss = std::bit_cast<double>(seed * 3);
  r.grad_absmax = std::bit_cast<double>(seed * 5);
  r.lr = std::bit_cast<double>(seed * 7);
  r.time_ns = seed * 11;
  return r;
}

bool same(const StepRecord& a, const StepRecord& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

RingContents read(std::span<const std::byte> bytes) {
  RingContents contents;
  std::string error;
  EXPECT_TRUE(read_ring(bytes, &contents, &error)) << error;
  return contents;
}

std::string refusal(std::span<const std::byte> bytes) {
  RingContents contents;
  std::string error;
  EXPECT_FALSE(read_ring(bytes, &contents, &error));
  EXPECT_TRUE(contents.records.empty());
  return error;
}

class Ring : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    folder_ = fs::temp_directory_path() / ("finitude-ring-" + name + "-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name = "ring") const { return (folder_ / name).string(); }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  fs::path folder_;
};

TEST_F(Ring, GivesBackWhatWasPushed) {
  RingWriter writer(path(), 8);
  ASSERT_TRUE(writer.on_file()) << writer.why_no_file();
  EXPECT_EQ(fs::file_size(path()), kRingHeaderBytes + 8 * 64);
  EXPECT_EQ(files(), 1u);
  RingContents contents;
  std::string error;
  ASSERT_TRUE(read_ring_file(path(), &contents, &error)) << error;
  EXPECT_TRUE(contents.records.empty());
  for (std::uint64_t step = 0; step < 5; ++step) writer.push(record_of(step));
  ASSERT_TRUE(read_ring_file(path(), &contents, &error)) << error;
  ASSERT_EQ(contents.records.size(), 5u);
  for (std::uint64_t step = 0; step < 5; ++step) EXPECT_TRUE(same(contents.records[step], record_of(step))) << step;
  EXPECT_EQ(contents.pid, static_cast<std::uint32_t>(::getpid()));
  EXPECT_EQ(contents.capacity, 8u);
  EXPECT_GT(contents.started_unix_ns, 1'600'000'000'000'000'000u);
  EXPECT_EQ(contents.torn, 0u);
  EXPECT_EQ(contents.overwritten, 0u);
  EXPECT_EQ(writer.pushed(), 5u);
}

TEST_F(Ring, KeepsTheLatest) {
  RingWriter writer(path(), 8);
  for (std::uint64_t step = 0; step < 21; ++step) writer.push(record_of(step));
  const RingContents contents = read(writer.bytes());
  ASSERT_EQ(contents.records.size(), 8u);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_TRUE(same(contents.records[i], record_of(13 + i)));
  EXPECT_EQ(contents.overwritten, 13u);
}

TEST_F(Ring, IsInOrderOfStepAcrossOptimizers) {
  RingWriter writer(path(), 16);
  StepRecord r;
  for (const auto& [step, optimizer] : {std::pair{5, 0}, {1, 1}, {6, 0}, {2, 1}, {5, 2}}) {
    r.step = static_cast<std::uint64_t>(step);
    r.optimizer = static_cast<std::uint32_t>(optimizer);
    writer.push(r);
  }
  std::vector<std::pair<std::uint64_t, std::uint32_t>> got;
  for (const StepRecord& record : read(writer.bytes()).records) got.emplace_back(record.step, record.optimizer);
  EXPECT_EQ(got, (decltype(got){{1, 1}, {2, 1}, {5, 0}, {5, 2}, {6, 0}}));
}

TEST_F(Ring, RoundsItsCapacity) {
  EXPECT_EQ(RingWriter(path()).capacity(), 4096u);
  EXPECT_EQ(RingWriter(path(), 0).capacity(), 1u);
  EXPECT_EQ(RingWriter(path(), 5).capacity(), 8u);
  EXPECT_EQ(RingWriter("", ~std::uint64_t{0}).capacity(), kMaxRingCapacity);
}

TEST_F(Ring, FallsBackToMemoryAndSaysWhy) {
  fs::create_directories(path("folder") + "/child");
  for (const std::string& wrong : {path("no/such/folder"), path("folder"), std::string(), std::string("/proc/self/x"),
                                   path(std::string(300, 'x'))}) {
    RingWriter writer(wrong, 4);
    EXPECT_FALSE(writer.on_file()) << wrong;
    EXPECT_FALSE(writer.why_no_file().empty());
    ASSERT_TRUE(writer.on());
    for (std::uint64_t step = 0; step < 9; ++step) writer.push(record_of(step));
    EXPECT_EQ(read(writer.bytes()).records.size(), 4u);
  }
  EXPECT_EQ(files(), 1u);  // nothing is left behind
}

TEST_F(Ring, FallsBackWhereFileSizeIsLimited) {
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{4096, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  RingWriter writer(path());
  ::setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_FALSE(writer.on_file());
  EXPECT_NE(writer.why_no_file(), "");
  writer.push(record_of(1));
  EXPECT_EQ(read(writer.bytes()).records.size(), 1u);
  EXPECT_EQ(files(), 0u);
}

TEST_F(Ring, HasItsBlocksBeforeTheFirstPush) {
  RingWriter writer(path());
  struct stat status {};
  ASSERT_EQ(::stat(path().c_str(), &status), 0);
  EXPECT_GE(static_cast<std::size_t>(status.st_blocks) * 512, fs::file_size(path()));  // no hole: no SIGBUS
}

TEST_F(Ring, AnExistingFileIsReplacedNotWrittenInto) {
  RingWriter first(path(), 4);
  first.push(record_of(1));
  RingWriter second(path(), 8);
  second.push(record_of(2));
  RingContents contents;
  std::string error;
  ASSERT_TRUE(read_ring_file(path(), &contents, &error)) << error;
  ASSERT_EQ(contents.records.size(), 1u);
  EXPECT_EQ(contents.records[0].step, 2u);
  EXPECT_EQ(read(first.bytes()).records[0].step, 1u);
  // Nor is what a link of that name points to.
  std::ofstream(path("precious")) << "text";
  fs::create_symlink(path("precious"), path("link"));
  RingWriter linked(path("link"), 4);
  EXPECT_TRUE(linked.on_file());
  EXPECT_EQ(fs::file_size(path("precious")), 4u);
}

TEST_F(Ring, LetGoItPushesNothing) {
  RingWriter writer(path(), 4);
  writer.let_go();
  writer.push(record_of(1));
  EXPECT_FALSE(writer.on());
  EXPECT_TRUE(writer.bytes().empty());
}

TEST_F(Ring, SurvivesKillOfItsWriter) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    RingWriter writer(path(), 64);
    for (std::uint64_t step = 0;; ++step) writer.push(record_of(step));
  }
  // Until it has gone round several times.
  RingContents contents;
  std::string error;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (contents.overwritten < 1000 && std::chrono::steady_clock::now() < end)
    read_ring_file(path(), &contents, &error);
  ::kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  ASSERT_TRUE(read_ring_file(path(), &contents, &error)) << error;
  EXPECT_EQ(contents.pid, static_cast<std::uint32_t>(child));
  EXPECT_GE(contents.overwritten, 1000u);
  EXPECT_LE(contents.torn, 1u);  // the one that it was writing when it died
  ASSERT_GE(contents.records.size(), 63u);
  for (std::size_t i = 0; i < contents.records.size(); ++i) {
    EXPECT_TRUE(same(contents.records[i], record_of(contents.records[i].step)));
    EXPECT_EQ(contents.records[i].step, contents.records[0].step + i);
  }
}

TEST_F(Ring, IsReadWhileItIsWritten) {
  RingWriter writer(path(), 32);
  std::atomic<bool> done = false;
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&, i] {
      while (!done.load()) {
        RingContents contents;
        std::string error;
        if (i == 0) {
          ASSERT_TRUE(read_ring(writer.bytes(), &contents, &error)) << error;
        } else {
          ASSERT_TRUE(read_ring_file(path(), &contents, &error)) << error;
        }
        ASSERT_LE(contents.records.size() + contents.torn, 32u);
        for (std::size_t k = 0; k < contents.records.size(); ++k) {
          ASSERT_TRUE(same(contents.records[k], record_of(contents.records[k].step)));
          if (k > 0) {
            ASSERT_LT(contents.records[k - 1].step, contents.records[k].step);
          }
        }
      }
    });
  }
  for (std::uint64_t step = 0; step < 100'000; ++step) {
    writer.push(record_of(step));
    if (step % 1000 == 0) std::this_thread::yield();
  }
  done = true;
  for (auto& t : readers) t.join();
  EXPECT_EQ(read(writer.bytes()).records.size(), 32u);
}

// -- hostile input -----------------------------------------------------------------------------------

using Bytes = std::vector<std::byte>;

Bytes valid(std::uint64_t capacity, std::uint64_t pushes) {
  RingWriter writer("", capacity);
  for (std::uint64_t step = 0; step < pushes; ++step) writer.push(record_of(step));
  const auto bytes = writer.bytes();
  return {bytes.begin(), bytes.end()};
}

// Changes a header field and makes its checksum right again.
template <typename T>
void patch(Bytes* bytes, std::size_t offset, T value) {
  std::memcpy(bytes->data() + offset, &value, sizeof value);
  const std::uint64_t sum = base::checksum(bytes->data(), offsetof(RingHeader, checksum));
  std::memcpy(bytes->data() + offsetof(RingHeader, checksum), &sum, sizeof sum);
}

TEST_F(Ring, RefusesWhatIsNoRing) {
  const Bytes good = valid(8, 20);
  EXPECT_NE(refusal({}), "");
  EXPECT_NE(refusal(std::span(good).first(kRingHeaderBytes - 1)), "");
  EXPECT_EQ(refusal(std::span(good).first(good.size() - 1)), "the ring is truncated");
  EXPECT_EQ(refusal(Bytes(kRingHeaderBytes)), "not a ring");
  Bytes bytes = good;
  bytes[offsetof(RingHeader, pid)] ^= std::byte{1};
  EXPECT_EQ(refusal(bytes), "the header of the ring is damaged");
  const auto patched = [&](std::size_t offset, auto value) {
    Bytes copy = good;
    patch(&copy, offset, value);
    return refusal(copy);
  };
  EXPECT_EQ(patched(offsetof(RingHeader, version), 2u), "a ring of another version");
  EXPECT_EQ(patched(offsetof(RingHeader, record_bytes), 0u), "a ring of another layout");
  EXPECT_EQ(patched(offsetof(RingHeader, header_bytes), 0xffffffffu), "a ring of another layout");
  for (const std::uint64_t capacity : {std::uint64_t{0}, std::uint64_t{7}, std::uint64_t{1} << 21, ~std::uint64_t{0}}) {
    EXPECT_EQ(patched(offsetof(RingHeader, capacity), capacity), "the capacity of the ring is out of range");
  }
  EXPECT_EQ(patched(offsetof(RingHeader, capacity), std::uint64_t{1} << 20), "the ring is truncated");
  EXPECT_EQ(refusal(std::span(good).subspan(1)), "the memory is not aligned");
}

TEST_F(Ring, RefusesWhatIsNoFile) {
  RingContents contents;
  std::string error;
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  for (const std::string& wrong : {path("none"), path("pipe"), folder_.string(), std::string("/dev/zero")}) {
    EXPECT_FALSE(read_ring_file(wrong, &contents, &error)) << wrong;
    EXPECT_NE(error, "");
  }
  const Bytes good = valid(8, 20);
  std::ofstream(path("short"), std::ios::binary).write(reinterpret_cast<const char*>(good.data()), 4200);
  EXPECT_FALSE(read_ring_file(path("short"), &contents, &error));
  EXPECT_EQ(error, "the ring is truncated");
}

// Whatever the bytes are: no crash, and what is given back was pushed once, whole.
void check(const Bytes& bytes, std::uint64_t pushes) {
  RingContents contents;
  std::string error;
  if (!read_ring(bytes, &contents, &error)) {
    ASSERT_FALSE(error.empty());
    ASSERT_TRUE(contents.records.empty());
    return;
  }
  ASSERT_LE(contents.records.size() + contents.torn, contents.capacity);
  for (std::size_t i = 0; i < contents.records.size(); ++i) {
    ASSERT_LT(contents.records[i].step, pushes);
    ASSERT_TRUE(same(contents.records[i], record_of(contents.records[i].step)));
    if (i > 0) {
      ASSERT_LT(contents.records[i - 1].step, contents.records[i].step);
    }
  }
}

TEST_F(Ring, SurvivesChangedBytes) {
  std::mt19937_64 random(11);
  const Bytes good = valid(16, 40);
  int accepted = 0, refused = 0;
  for (int round = 0; round < 4000; ++round) {
    Bytes bytes = good;
    for (std::uint64_t n = 1 + random() % 6; n > 0; --n) {
      // The header's fields, the slots, or the padding that nobody looks at.
      const std::size_t at = random() % 3 == 0 ? random() % 64 : random() % bytes.size();
      switch (random() % 5) {
        case 0:
          bytes[at] ^= static_cast<std::byte>(1u << random() % 8);
          break;
        case 1:
          bytes[at] = static_cast<std::byte>(random());
          break;
        case 2:
          patch(&bytes, random() % 6 * 8, random() >> random() % 64);
          break;
        case 3: {  // one piece over another, as a torn write leaves it
          const std::size_t from = random() % (bytes.size() - 64), to = random() % (bytes.size() - 64);
          std::memmove(bytes.data() + to, bytes.data() + from, random() % 64);
          break;
        }
        default:
          std::memset(bytes.data() + at, random() % 2 ? 0xff : 0, std::min<std::size_t>(64, bytes.size() - at));
      }
    }
    if (random() % 8 == 0) bytes.resize(random() % (bytes.size() + 1));
    RingContents contents;
    std::string error;
    (read_ring(bytes, &contents, &error) ? accepted : refused) += 1;
    check(bytes, 40);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(accepted, 500);  // both sides of the gate were tried
  EXPECT_GT(refused, 500);
}

TEST_F(Ring, ARecordTornAnywhereIsDropped) {
  const Bytes older = valid(4, 4), newer = valid(4, 8);  // the same slots, a round later
  for (std::size_t cut = 1; cut < 64; ++cut) {
    for (const bool front : {false, true}) {
      Bytes bytes = older;
      std::byte* slot = bytes.data() + kRingHeaderBytes;
      const std::byte* other = newer.data() + kRingHeaderBytes;
      if (front)
        std::memcpy(slot, other, cut);
      else
        std::memcpy(slot + cut, other + cut, 64 - cut);
      const bool unchanged = std::memcmp(slot, older.data() + kRingHeaderBytes, 64) == 0;
      const bool complete = std::memcmp(slot, other, 64) == 0;
      const RingContents contents = read(bytes);
      EXPECT_EQ(contents.torn, unchanged || complete ? 0u : 1u) << cut << front;
    }
  }
}

#ifdef FINITUDE_HAS_RAPIDCHECK

RC_GTEST_PROP(RingProperty, AnyBitsComeBack, ()) {
  const auto capacity = *rc::gen::inRange<std::uint64_t>(0, 40);
  const auto fields = *rc::gen::container<std::vector<std::uint64_t>>(rc::gen::arbitrary<std::uint64_t>());
  RingWriter writer("", capacity);
  std::vector<StepRecord> pushed;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    StepRecord r;
    r.step = i;
    r.optimizer = static_cast<std::uint32_t>(fields[i]);
    r.flags = static_cast<std::uint32_t>(fields[fields.size() - 1 - i]);
    r.loss = std::bit_cast<double>(fields[i]);
    r.grad_absmax = std::bit_cast<double>(0x7ff0000000000000u | fields[i]);  // Inf, or NaN with any payload
    r.lr = std::bit_cast<double>(fields[fields.size() / 2]);
    r.time_ns = ~fields[i];
    writer.push(r);
    pushed.push_back(r);
  }
  const RingContents contents = read(writer.bytes());
  const std::size_t kept = std::min<std::size_t>(pushed.size(), writer.capacity());
  RC_ASSERT(contents.records.size() == kept);
  RC_ASSERT(contents.torn == 0u);
  RC_ASSERT(contents.overwritten == pushed.size() - kept);
  for (std::size_t i = 0; i < kept; ++i) RC_ASSERT(same(contents.records[i], pushed[pushed.size() - kept + i]));
}

#endif

}  // namespace
}  // namespace finitude::record
