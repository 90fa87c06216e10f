#include "base/pinned_core_posix.h"

#include <atomic>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace finitude::base {
namespace {

using testing::ElementsAre;

TEST(PinnedCore, KeepsTheThreadOnOneCore) {
  const std::vector<int> before = allowed_cores();
  ASSERT_FALSE(before.empty());
  EXPECT_THAT(before, testing::Contains(current_core()));
  {
    const PinnedCore pin(before.back());
    EXPECT_THAT(allowed_cores(), ElementsAre(before.back()));
    EXPECT_EQ(current_core(), before.back());
  }
  EXPECT_EQ(allowed_cores(), before);
}

TEST(PinnedCore, LeavesAThreadThatItDoesNotKnowHowToPin) {
  const std::vector<int> before = allowed_cores();
  for (const int core : {-1, 1 << 20}) {
    const PinnedCore pin(core);
    EXPECT_EQ(allowed_cores(), before);
  }
}

TEST(PinnedCore, ThreadsStartedMeanwhileAreFree) {
  const std::vector<int> before = allowed_cores();
  if (before.size() < 2) GTEST_SKIP() << "this machine has one core, to which every thread is pinned";
  std::vector<int> others;
  std::atomic<bool> is_over = false;
  std::thread thread;
  {
    const PinnedCore pin(before.back());
    thread = std::thread([&] {
      is_over.wait(false);
      others = allowed_cores();
    });
  }
  is_over = true;
  is_over.notify_one();
  thread.join();
  EXPECT_EQ(others, before);
}

}  // namespace
}  // namespace finitude::base
