#include "locate/neighbours.h"

#include <gtest/gtest.h>

#include "locate/testing.h"

namespace finitude::locate {
namespace {

using record::kNone;
using record::OpId;
using record::StorageId;
using record::Trace;

// Storages of 256 bytes, and ops that read and give them.
class Memory {
 public:
  Trace trace;

  StorageId at(std::uint64_t address, std::int64_t size_bytes = 256, record::Origin origin = record::Origin::kUnknown) {
    record::Storage& storage = trace.storages.emplace_back();
    storage.origin = origin;
    storage.address = address;
    storage.size_bytes = size_bytes;
    return static_cast<StorageId>(trace.storages.size() - 1);
  }
  OpId op(const std::vector<StorageId>& reads, const std::vector<StorageId>& gives) {
    record::Op& op = trace.ops.emplace_back();
    for (const StorageId id : reads) op.inputs.push_back(use(id));
    for (const StorageId id : gives) op.outputs.push_back(use(id));
    return static_cast<OpId>(trace.ops.size() - 1);
  }
  Around around(StorageId storage, OpId at, std::int64_t begin = 0, std::int64_t end = 256) const {
    return memory_around(trace, storage, begin, end, at).value();
  }

 private:
  static record::TensorUse use(StorageId id) { return testing::use_of({id, {64}}, testing::kClean, "self"); }
};

TEST(Neighbours, NextOnesInOrderOfAddress) {
  Memory m;
  const StorageId far = m.at(0x1000), below = m.at(0x1200), changed = m.at(0x1340), above = m.at(0x1480),
                  other = m.at(0x9000);
  const OpId made = m.op({}, {below});
  m.op({}, {far, changed, above, other});
  const OpId reader = m.op({changed, above}, {});
  const Around found = m.around(changed, reader, 16, 32);
  EXPECT_EQ(found.first, 0x1350u);
  EXPECT_EQ(found.end, 0x1360u);
  ASSERT_TRUE(found.before && found.after);
  EXPECT_EQ(found.before->storage, below);
  EXPECT_EQ(found.before->gap, 0x40);
  EXPECT_EQ(found.before->made_by, made);
  EXPECT_EQ(found.before->last_used, made);
  EXPECT_EQ(found.before->life, Life::kNotKnown);
  EXPECT_EQ(found.after->storage, above);
  EXPECT_EQ(found.after->life, Life::kInUse) << "it is used later";
  EXPECT_TRUE(found.same.empty());
}

TEST(Neighbours, WhoIsTooFarAwayIsNone) {
  Memory m;
  const StorageId changed = m.at(0x10000), below = m.at(0x10000 - 256 - kMostGap - 1),
                  above = m.at(0x10100 + static_cast<std::uint64_t>(kMostGap));
  m.op({}, {changed, below, above});
  const Around found = m.around(changed, m.op({changed}, {}));
  EXPECT_FALSE(found.before);
  ASSERT_TRUE(found.after);
  EXPECT_EQ(found.after->gap, kMostGap);
}

TEST(Neighbours, WhoIsInUseGoesBeforeWhoIsGone) {
  Memory m;
  const StorageId gone = m.at(0x1000), changed = m.at(0x1100), alive = m.at(0x0e00);
  m.op({}, {gone, alive, changed});
  const OpId reader = m.op({changed}, {});
  m.trace.storages[gone].freed_before = reader;
  m.trace.freed_asked_at = {reader};
  EXPECT_EQ(m.around(changed, reader).before->storage, alive);
  EXPECT_EQ(m.around(changed, reader).before->life, Life::kInUse) << "it was asked, and not freed";
  m.trace.storages[alive].freed_before = reader;
  EXPECT_EQ(m.around(changed, reader).before->storage, gone);
  EXPECT_EQ(m.around(changed, reader).before->life, Life::kGivenBack);
}

TEST(Neighbours, EarlierOwnersTheLastFirst) {
  Memory m;
  const StorageId first = m.at(0x2000), second = m.at(0x2080), changed = m.at(0x2000), later = m.at(0x2000);
  m.op({}, {first});
  m.op({first}, {});
  m.op({}, {second});
  m.op({}, {changed});
  const OpId reader = m.op({changed}, {});
  m.op({}, {later});
  const Around found = m.around(changed, reader);
  ASSERT_EQ(found.same.size(), 2u);
  EXPECT_EQ(found.same[0].storage, second);
  EXPECT_EQ(found.same[1].storage, first);
  for (const Owner& owner : found.same) EXPECT_EQ(owner.life, Life::kGivenBack) << "another has its memory since";
  EXPECT_EQ(m.around(changed, reader, 0, 128).same.size(), 1u) << "not of those bytes";
}

TEST(Neighbours, WhoSharesTheMemoryIsInUse) {
  Memory m;
  const StorageId changed = m.at(0x3000), weight = m.at(0x3000, 512, record::Origin::kParameter);
  m.op({changed}, {});
  const OpId reader = m.op({changed}, {});
  const Around found = m.around(changed, reader);
  ASSERT_EQ(found.same.size(), 1u);
  EXPECT_EQ(found.same[0].storage, weight);
  EXPECT_EQ(found.same[0].life, Life::kInUse);
  EXPECT_EQ(found.same[0].made_by, kNone);
}

TEST(Neighbours, UnknownAddressSaysNothing) {
  Memory m;
  const StorageId changed = m.at(0);
  const OpId reader = m.op({changed}, {});
  EXPECT_FALSE(memory_around(m.trace, changed, 0, 256, reader));
  EXPECT_FALSE(memory_around(m.trace, 7, 0, 256, reader));
  EXPECT_FALSE(memory_around(m.trace, changed, 8, 8, reader));
}

}  // namespace
}  // namespace finitude::locate
