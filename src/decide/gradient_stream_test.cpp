#include "decide/gradient_stream.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <set>

namespace finitude::decide {
namespace {

// Records what it is asked for; refuses where it is asked to.
struct Script : ReadAhead {
  std::vector<std::vector<std::uint32_t>> reads;
  std::vector<Lane> joins;
  std::set<std::uint32_t> held, gone;
  bool works = true;

  bool hold(std::uint32_t g) override { return gone.count(g) == 0 && held.insert(g).second; }
  bool read(Lane, const std::uint32_t* g, std::uint32_t n) override {
    if (works) reads.emplace_back(g, g + n);
    return works;
  }
  void join(Lane lane) override { joins.push_back(lane); }
  void let_go(const std::uint32_t* g, std::uint32_t n) override {
    for (std::uint32_t i = 0; i < n; ++i) EXPECT_EQ(held.erase(g[i]), 1u);
  }
};

int streams[8];
Lane lane(int i) { return &streams[i]; }
GradientId id(std::uintptr_t tensor, std::uint32_t version = 0, std::uint64_t bytes = 10) {
  return {reinterpret_cast<void*>(tensor), reinterpret_cast<void*>(tensor + 1), reinterpret_cast<void*>(tensor + 2),
          bytes, version};
}

struct GradientStreamTest : ::testing::Test {
  GradientStreamTest() { stream.reserve(100, 30); }
  void backward(std::initializer_list<std::uint32_t> gradients, std::uint32_t version = 0) {
    stream.begin_backward(true);
    for (const std::uint32_t g : gradients) stream.written(g, id(g, version), lane(0));
    stream.end_backward(lane(0));
  }
  Script device;
  GradientStream stream{device};
};

TEST_F(GradientStreamTest, FullBatchesAreReadAheadTheRestLater) {
  backward({5, 4, 3, 2});
  EXPECT_EQ(device.reads, (std::vector<std::vector<std::uint32_t>>{{5, 4, 3}}));
  EXPECT_TRUE(stream.stands(5, id(5)) && stream.stands(3, id(3)));
  EXPECT_FALSE(stream.stands(2, id(2)));
  EXPECT_TRUE(device.held.empty());
  EXPECT_EQ(device.joins, std::vector<Lane>{lane(0)});
}

TEST_F(GradientStreamTest, WritesReplacementsAndNewStoragesAreSeen) {
  backward({5, 4, 3});
  EXPECT_FALSE(stream.stands(5, id(5, 1)));
  EXPECT_FALSE(stream.stands(4, id(44)));
  GradientId moved = id(3);
  moved.storage = &moved;
  EXPECT_FALSE(stream.stands(3, moved));
}

TEST_F(GradientStreamTest, OnlyTheLastBackwardIsRead) {
  stream.begin_backward(false);
  for (std::uint32_t g = 0; g < 9; ++g) stream.written(g, id(g), lane(0));
  stream.end_backward(lane(0));
  EXPECT_TRUE(device.reads.empty() && device.joins.empty());
}

TEST_F(GradientStreamTest, GradientsWrittenTwiceAreLeftToTheStep) {
  backward({5, 4, 5, 5, 3, 2});
  EXPECT_EQ(device.reads.size(), 1u);
  stream.begin_backward(true);
  for (const std::uint32_t version : {1u, 2u, 3u}) stream.written(5, id(5, version), lane(0));
  for (const std::uint32_t g : {4u, 3u, 2u}) stream.written(g, id(g, 1), lane(0));
  stream.end_backward(lane(0));
  EXPECT_FALSE(stream.stands(5, id(5, 3)));
  EXPECT_TRUE(stream.stands(4, id(4, 1)));
  EXPECT_EQ(device.reads.back(), (std::vector<std::uint32_t>{4, 3}));
}

TEST_F(GradientStreamTest, LanesHaveOwnBatchesStepReadsTheExcess) {
  stream.begin_backward(true);
  for (std::uint32_t round = 0; round < 3; ++round) {
    for (int l = 0; l < 6; ++l) {
      const auto g = static_cast<std::uint32_t>(10 * l) + round;
      stream.written(g, id(g), lane(l));
    }
  }
  EXPECT_EQ(device.reads.size(), GradientStream::kLanes);
  stream.end_backward(lane(7));
  const std::vector<Lane> joined{lane(0), lane(1), lane(2), lane(3), lane(7)};
  EXPECT_EQ(device.joins, joined);
  EXPECT_FALSE(stream.stands(50, id(50)));
  EXPECT_TRUE(device.held.empty());
}

TEST_F(GradientStreamTest, EachLaneKeepsAtMostOneBatch) {
  stream.begin_backward(true);
  for (std::uint32_t g = 0; g < 90; ++g) {
    stream.written(g, id(g), lane(0));
    EXPECT_LE(device.held.size(), 3u);
  }
  stream.end_backward(lane(0));
  EXPECT_EQ(device.reads.size(), 30u);
  EXPECT_EQ(device.joins.size(), 30u);
}

TEST_F(GradientStreamTest, MemoryThatIsGoneIsNotRead) {
  device.gone = {4};
  backward({5, 4, 3});
  EXPECT_EQ(device.reads, (std::vector<std::vector<std::uint32_t>>{{5, 3}}));
  EXPECT_FALSE(stream.stands(4, id(4)));
}

TEST_F(GradientStreamTest, AfterFailedReadTheStepReadsTheRest) {
  device.works = false;
  stream.begin_backward(true);
  for (const std::uint32_t g : {5u, 4u, 3u}) stream.written(g, id(g), lane(0));
  EXPECT_TRUE(device.held.empty() && device.joins.empty() && !stream.is_active());
  device.works = true;
  for (const std::uint32_t g : {8u, 7u, 6u}) stream.written(g, id(g), lane(0));
  stream.end_backward(lane(0));
  EXPECT_TRUE(device.reads.empty());
  EXPECT_FALSE(stream.stands(5, id(5)) || stream.stands(8, id(8)));
  stream.end_window();
  backward({5, 4, 3});
  EXPECT_TRUE(stream.stands(5, id(5)));
}

TEST_F(GradientStreamTest, UselessReadsAreTriedLessAndLess) {
  int tried = 0, window = 0;
  std::vector<int> at;
  for (; window < 200; ++window) {
    const auto before = device.reads.size();
    backward({1, 2, 3}, static_cast<std::uint32_t>(window));
    if (device.reads.size() != before) {
      ++tried;
      at.push_back(window);
    }
    stream.end_window();  // nothing was used: all were unscaled in place, say
  }
  EXPECT_EQ(tried, 9);
  EXPECT_EQ((std::vector<int>{at[0], at[1], at[2], at[3]}), (std::vector<int>{0, 2, 5, 10}));
  // One success, and it is on again.
  for (;; ++window) {
    const auto before = device.reads.size();
    backward({1, 2, 3}, static_cast<std::uint32_t>(window));
    const bool read = device.reads.size() != before;
    for (const std::uint32_t g : {1u, 2u, 3u}) {
      if (read) stream.used(g);
    }
    stream.end_window();
    if (read) break;
  }
  const auto before = device.reads.size();
  backward({1, 2, 3}, static_cast<std::uint32_t>(window + 1));
  EXPECT_EQ(device.reads.size(), before + 1);
}

TEST(GradientStreaming, IsForWhatTakesTimeToRead) {
  constexpr std::uint64_t kMany = std::uint64_t{1} << 32, kFew = 1000;
  EXPECT_TRUE(wants_streaming(Streaming::kAuto, kMany, false));
  EXPECT_FALSE(wants_streaming(Streaming::kAuto, kMany, true));
  EXPECT_FALSE(wants_streaming(Streaming::kAuto, kFew, false));
  EXPECT_FALSE(wants_streaming(Streaming::kOff, kMany, false));
  EXPECT_TRUE(wants_streaming(Streaming::kOn, kFew, true));
  EXPECT_EQ(batch_bytes_of(kMany), kMany / 16);
}

// ---- streams, events and an allocator, as a partial order
// --------------------------------------------------------------------------- Each stream has a vector clock: what is
// known to be over before its next operation. Memory is given away again as PyTorch's caching allocator does: to the
// next tensor of the stream that it was allocated on, at once, but for what other streams used, whose work up to the
// time when it was let go of has to be over (the engine's record_stream). Checked in every order that the events allow:
// nothing is written to memory that may still be read, and a result that the step takes is of the bits that the
// gradient has then.

constexpr int kStreams = 3, kSide = kStreams;
using Clock = std::array<std::uint64_t, kStreams + 1>;
struct Moment {
  int stream = 0;
  std::uint64_t time = 0;
};

struct Address {
  Moment written;
  std::vector<Moment> reads;
};

struct World;
struct Storage {
  Storage(World& w, int p, int a) : world(w), pool(p), address(a) {}
  ~Storage();
  World& world;
  int pool, address;
  std::set<int> used_on;
  bool own = false;  // made by the script, which orders the streams that use it itself: after backward, by the stream
                     // that called it
};

struct Gradient {
  std::shared_ptr<Storage> storage;
  std::uint64_t tensor = 0;
  std::uint32_t version = 0;
};

struct World : ReadAhead {
  std::mt19937_64 random;
  std::array<Clock, kStreams + 1> clocks{};
  std::vector<Address> addresses;
  std::map<int, std::vector<std::pair<int, Clock>>> free;  // by pool: addresses, and what must be over before
  std::vector<Gradient> gradients;
  std::vector<std::weak_ptr<Storage>> collected;
  std::vector<std::shared_ptr<Storage>> held, orphans;
  std::vector<Moment> slot_read, slot_of_write;  // the last read of each slot, and the write whose bits it saw
  std::uint64_t serial = 0;

  bool is_before(const Moment& m, const Clock& c) const { return c[static_cast<std::size_t>(m.stream)] >= m.time; }
  Moment operation(int stream) {
    auto& c = clocks[static_cast<std::size_t>(stream)];
    return {stream, ++c[static_cast<std::size_t>(stream)]};
  }
  void wait(int stream, int other) {
    merge(clocks[static_cast<std::size_t>(stream)], clocks[static_cast<std::size_t>(other)]);
  }
  static void merge(Clock& into, const Clock& other) {
    for (std::size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], other[i]);
  }
  void write(Storage& s, int stream) {
    s.used_on.insert(stream);
    Address& a = addresses[static_cast<std::size_t>(s.address)];
    a.written = operation(stream);
  }
  // Memory that another tensor had: everything that touched it must be over for the stream that it is given to.
  std::shared_ptr<Storage> allocate(int stream) {
    int address = 0;
    auto& pool = free[stream];
    if (!pool.empty()) {
      address = pool.back().first;
      merge(clocks[static_cast<std::size_t>(stream)], pool.back().second);
      pool.pop_back();
      for (const Moment& r : addresses[static_cast<std::size_t>(address)].reads) {
        EXPECT_TRUE(is_before(r, clocks[static_cast<std::size_t>(stream)])) << "memory is written while it may be read";
      }
      addresses[static_cast<std::size_t>(address)].reads.clear();
    } else {
      address = static_cast<int>(addresses.size());
      addresses.emplace_back();
    }
    return std::make_shared<Storage>(*this, stream, address);
  }
  GradientId id_of(std::uint32_t g) const {
    const Gradient& gradient = gradients[g];
    const Storage* s = gradient.storage.get();
    return {reinterpret_cast<void*>(gradient.tensor), s,
            reinterpret_cast<void*>(static_cast<std::uintptr_t>(s->address) + 1), 10, gradient.version};
  }

  bool hold(std::uint32_t g) override {
    held[g] = collected[g].lock();
    return held[g] != nullptr;
  }
  bool read(Lane from, const std::uint32_t* list, std::uint32_t n) override {
    wait(kSide, static_cast<int>(static_cast<const int*>(from) - streams));
    for (std::uint32_t i = 0; i < n; ++i) {
      Address& a = addresses[static_cast<std::size_t>(held[list[i]]->address)];
      const Moment m = operation(kSide);
      a.reads.push_back(m);
      slot_read[list[i]] = m;
      // A write that is not ordered before the read may or may not be seen by it: then it must not count.
      slot_of_write[list[i]] = is_before(a.written, clocks[kSide]) ? a.written : Moment{kSide, UINT64_MAX};
    }
    return true;
  }
  void join(Lane to) override { wait(static_cast<int>(static_cast<const int*>(to) - streams), kSide); }
  // The host has seen that the device is past all reads.
  void forget_orphans() {
    for (const auto& o : orphans) addresses[static_cast<std::size_t>(o->address)].reads.clear();
    orphans.clear();
  }
  void let_go(const std::uint32_t* list, std::uint32_t n) override {
    for (std::uint32_t i = 0; i < n; ++i) {
      if (held[list[i]].use_count() == 1)
        orphans.push_back(held[list[i]]);  // as the gate does: kept until the device has passed
      held[list[i]].reset();
    }
  }
};

Storage::~Storage() {
  Clock before{};
  for (const int s : used_on) {
    if (s != pool && !own) World::merge(before, world.clocks[static_cast<std::size_t>(s)]);
  }
  world.free[pool].emplace_back(address, before);
}

TEST(GradientStreamOrder, VerdictsSeeFinalBitsReadsRaceNoWrites) {
  std::uint64_t standing = 0, scanned = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    World world;
    GradientStream stream(world);
    world.random.seed(seed);
    const auto dice = [&world](std::uint64_t n) { return static_cast<std::uint32_t>(world.random() % n); };
    const std::uint32_t count = 1 + dice(20);
    world.gradients.resize(count);
    world.collected.resize(count);
    world.held.resize(count);
    world.slot_read.resize(count);
    world.slot_of_write.resize(count);
    stream.reserve(count, 10 * (1 + dice(5)));
    const bool careless = dice(2) == 0;  // hooks that let go of gradients in the middle of backward
    for (int window = 0; window < 12; ++window) {
      const int caller = static_cast<int>(dice(kStreams));
      if (window != 0) {  // the program keeps its own streams in order between windows
        for (int s = 0; s < kStreams; ++s) world.wait(caller, s);
      }
      const std::uint32_t micro_batches = 1 + dice(2);
      for (std::uint32_t m = 0; m < micro_batches; ++m) {
        stream.begin_backward(dice(4) == 0 || m + 1 == micro_batches);
        for (int s = 0; s < kStreams; ++s) world.wait(s, caller);
        for (std::uint32_t i = 0; i < count + count / 4; ++i) {
          const std::uint32_t g = dice(count);
          const int on = static_cast<int>(dice(kStreams));
          Gradient& gradient = world.gradients[g];
          if (gradient.storage == nullptr) {
            gradient = {world.allocate(on), ++world.serial, 0};
          } else {
            // Two nodes that write one gradient are ordered by the engine.
            for (int s = 0; s < kStreams; ++s) world.wait(on, s);
            ++gradient.version;
          }
          world.write(*gradient.storage, on);
          world.collected[g] = gradient.storage;
          stream.written(g, world.id_of(g), lane(on));
          if (careless && dice(5) == 0) {
            Gradient& other = world.gradients[dice(count)];
            if (other.storage != nullptr && !other.storage->own) other = {};
          }
        }
        for (int s = 0; s < kStreams; ++s) world.wait(caller, s);  // the engine, before backward returns
        stream.end_backward(lane(caller));
      }
      if (dice(2) == 0) world.forget_orphans();
      for (std::uint32_t g = 0; g < count; ++g) {
        Gradient& gradient = world.gradients[g];
        if (gradient.storage == nullptr) continue;
        switch (dice(12)) {
          case 0:
            gradient = {};
            continue;
          case 1:
            gradient = {world.allocate(caller), ++world.serial, 0};
            gradient.storage->own = true;
            world.write(*gradient.storage, caller);
            break;
          case 2:
            ++gradient.version;
            world.write(*gradient.storage, caller);
            break;
          default:
            break;
        }
      }
      // The step.
      world.wait(caller, kSide);
      for (std::uint32_t g = 0; g < count; ++g) {
        const Gradient& gradient = world.gradients[g];
        if (gradient.storage == nullptr) continue;
        const Moment last = world.addresses[static_cast<std::size_t>(gradient.storage->address)].written;
        if (!stream.stands(g, world.id_of(g))) {
          ++scanned;
          continue;
        }
        ++standing;
        stream.used(g);
        const Moment seen = world.slot_of_write[g];
        ASSERT_TRUE(seen.stream == last.stream && seen.time == last.time)
            << "seed " << seed << ": judged by other bits";
        ASSERT_TRUE(world.is_before(world.slot_read[g], world.clocks[static_cast<std::size_t>(caller)]));
      }
      stream.end_window();
      if (dice(3) != 0) {
        for (Gradient& gradient : world.gradients) gradient = {};  // zero_grad
      }
    }
    world.forget_orphans();
    for (auto& h : world.held) ASSERT_EQ(h, nullptr);
    world.gradients.clear();
  }
  EXPECT_GT(standing, 2000u);
  EXPECT_GT(scanned, 2000u);
}

}  // namespace
}  // namespace finitude::decide
