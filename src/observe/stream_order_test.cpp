#include "observe/stream_order.h"

#include <gtest/gtest.h>

namespace finitude::observe {
namespace {

using record::StreamRace;

constexpr std::uint64_t kA = 4096, kB = 8192;

StreamOrder::Use use(std::uint64_t address, StreamOrder::Stream stream, record::OpId op, bool writes) {
  return {address, 512, 0, 512, stream, op, writes};
}

TEST(StreamOrder, OneStreamOrdersItself) {
  StreamOrder order;
  order.used(use(kA, 0, 1, true));
  order.used(use(kA, 0, 2, false));
  order.used(use(kA, 0, 3, true));
  EXPECT_TRUE(order.races().empty());
}

TEST(StreamOrder, ReadOnAnotherStreamWithoutAnEventIsARace) {
  StreamOrder order;
  order.used(use(kA, 7, 1, true));
  order.used(use(kA, 0, 2, false));
  ASSERT_EQ(order.races().size(), 1u);
  const StreamRace race = order.races()[0];
  EXPECT_EQ(race.kind, StreamRace::kUse);
  EXPECT_EQ(race.first, 1u);
  EXPECT_EQ(race.second, 2u);
  EXPECT_EQ(race.first_stream, 7u);
  EXPECT_TRUE(race.first_writes);
  EXPECT_FALSE(race.second_writes);
}

TEST(StreamOrder, AnEventOrdersWhatCameBeforeItAndNothingLater) {
  StreamOrder order;
  order.used(use(kA, 7, 1, true));
  order.event_recorded(5, 7);
  order.used(use(kB, 7, 2, true));
  order.event_awaited(5, 0);
  order.used(use(kA, 0, 3, false));
  EXPECT_TRUE(order.races().empty());
  order.used(use(kB, 0, 4, false));  // written after the event
  ASSERT_EQ(order.races().size(), 1u);
  EXPECT_EQ(order.races()[0].first, 2u);
}

TEST(StreamOrder, OrderIsHandedOn) {
  StreamOrder order;
  order.used(use(kA, 1, 1, true));
  order.event_recorded(5, 1);
  order.event_awaited(5, 2);
  order.event_recorded(6, 2);
  order.event_awaited(6, 3);
  order.used(use(kA, 3, 2, true));
  EXPECT_TRUE(order.races().empty());
}

TEST(StreamOrder, TheHostOrdersWhatItWaitedFor) {
  StreamOrder order;
  order.used(use(kA, 1, 1, true));
  order.used(use(kB, 2, 2, true));
  order.host_awaited_stream(1);
  order.used(use(kA, 3, 3, false));
  EXPECT_TRUE(order.races().empty());
  order.used(use(kB, 3, 4, false));
  EXPECT_EQ(order.races().size(), 1u);
  order.host_awaited_device();
  order.used(use(kB, 4, 5, true));
  EXPECT_EQ(order.races().size(), 1u);
}

TEST(StreamOrder, ReadsAndOtherBytesAreNoRace) {
  StreamOrder order;
  order.used(use(kA, 1, 1, false));
  order.used(use(kA, 2, 2, false));
  order.used({kB, 512, 0, 256, 1, 3, true});
  order.used({kB, 512, 256, 512, 2, 4, true});
  EXPECT_TRUE(order.races().empty());
}

TEST(StreamOrder, MemoryHandedOutAgainTooEarlyNamesWhoStillUsesIt) {
  StreamOrder order;
  order.handed_out(kA);
  order.used(use(kA, 0, 1, true));
  order.event_recorded(5, 0);
  order.event_awaited(5, 7);
  order.used(use(kA, 7, 2, false));
  order.given_back(kA, 3);
  order.handed_out(kA);
  order.used(use(kA, 0, 4, true));
  ASSERT_EQ(order.races().size(), 1u);
  const StreamRace race = order.races()[0];
  EXPECT_EQ(race.kind, StreamRace::kReuse);
  EXPECT_EQ(race.first, 2u);
  EXPECT_EQ(race.second, 4u);
  EXPECT_EQ(race.given_back, 3u);
}

TEST(StreamOrder, RecordStreamOrdersMemoryThatIsHandedOutAgain) {
  StreamOrder order;
  order.used(use(kA, 0, 1, true));
  order.event_recorded(5, 0);
  order.event_awaited(5, 7);
  order.used(use(kA, 7, 2, false));
  order.recorded_on(kA, 7);
  order.given_back(kA, 3);
  order.handed_out(kA);
  order.used(use(kA, 0, 4, true));
  EXPECT_TRUE(order.races().empty());
}

TEST(StreamOrder, APartOfMemoryThatWasGivenBackIsSeen) {
  StreamOrder order;
  order.used({kA, 1024, 512, 1024, 7, 1, false});
  order.given_back(kA, 2);
  order.used({kA + 512, 256, 0, 256, 0, 3, true});
  EXPECT_EQ(order.races().size(), 1u);
  order.used({kA, 256, 0, 256, 0, 4, true});  // other bytes
  EXPECT_EQ(order.races().size(), 1u);
}

}  // namespace
}  // namespace finitude::observe
