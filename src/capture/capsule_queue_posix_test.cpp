#include "capture/capsule_queue_posix.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "capture/testing.h"

namespace finitude::capture {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

class CapsuleQueues : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) / ("capsule-queue-" + std::to_string(getpid()));
    fs::remove_all(root_);
    fs::create_directories(root_);
    queue().take_done();
  }
  void TearDown() override {
    EXPECT_TRUE(queue().wait(20));
    fs::remove_all(root_);
  }
  static CapsuleQueue& queue() { return CapsuleQueue::get(); }
  std::string folder(int number) const { return (root_ / ("step-" + std::to_string(number))).string(); }
  // With a table of so many bytes beside the tape, which is overwritten right away.
  CapsuleJob job(int number, std::size_t bytes = 1000) const {
    std::string table(bytes, 'x');
    CapsuleJob job;
    job.folder = folder(number);
    EXPECT_EQ(draft_capsule(whole_tape(), {{"step", number}}, {},
                            {{"table", "U8", {static_cast<std::int64_t>(bytes)}, table}}, &job.draft)
                  .why(),
              "");
    job.draft.let_go_of_start();
    table.assign(bytes, 'y');
    return job;
  }
  static nlohmann::json about(const std::string& folder, std::string* table = nullptr) {
    nlohmann::json read;
    Tape tape;
    TensorBytes start;
    const Status status = read_capsule(folder, &read, &tape, &start);
    if (table != nullptr) *table = start["table"];
    return status.ok() ? read : nlohmann::json(status.why());
  }

  fs::path root_;
};

TEST_F(CapsuleQueues, WriteWhatWasThereWhenTheyWereReported) {
  queue().add(job(1, 9 << 20), 1 << 30);
  CapsuleJob second = job(2);
  second.tried = [&](const std::string& written) {
    return std::string(about(written)["step"] == 2 && written == folder(2) ? "identical" : "other bits");
  };
  queue().add(std::move(second), 1 << 30);
  ASSERT_TRUE(queue().wait(60));
  std::string table;
  EXPECT_EQ(about(folder(1), &table)["step"], 1);
  EXPECT_TRUE(table == std::string(9 << 20, 'x'));
  EXPECT_EQ(about(folder(2))["replay"], "identical");
  const auto done = queue().take_done();
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].folder + done[0].why_not + done[0].replayed, folder(1) + "not tried");
  EXPECT_EQ(done[1].folder + done[1].why_not + done[1].replayed, folder(2) + "identical");
  EXPECT_GT(done[0].times.bytes, std::uint64_t{9} << 20);
  EXPECT_TRUE(queue().take_done().empty());
}

TEST_F(CapsuleQueues, KeepTheNewest) {
  for (int i = 0; i < 4; ++i) {
    CapsuleJob one = job(i);
    one.keep = 2;
    queue().add(std::move(one), 1 << 30);
  }
  ASSERT_TRUE(queue().wait(60));
  EXPECT_FALSE(fs::exists(folder(0)) || fs::exists(folder(1)));
  EXPECT_TRUE(fs::exists(folder(3)));
}

TEST_F(CapsuleQueues, HoldNoMoreMemoryThanTheyMay) {
  std::atomic<bool> goes_on = false, added = false;
  CapsuleJob first = job(1, 3 << 20);
  first.tried = [&](const std::string&) {
    while (!goes_on) std::this_thread::sleep_for(1ms);
    return std::string("identical");
  };
  queue().add(std::move(first), 4 << 20);
  std::thread other([&] {
    queue().add(job(2, 3 << 20), 4 << 20);
    added = true;
  });
  std::this_thread::sleep_for(100ms);
  EXPECT_FALSE(added);
  EXPECT_FALSE(queue().wait(0));
  goes_on = true;
  other.join();
  ASSERT_TRUE(queue().wait(60));
  EXPECT_EQ(about(folder(2))["step"], 2);
  queue().add(job(3, 3 << 20), 1);  // one alone may be larger
  ASSERT_TRUE(queue().wait(60));
  EXPECT_EQ(about(folder(3))["step"], 3);
}

TEST_F(CapsuleQueues, NobodyWaitsWhoIsInterrupted) {
  std::atomic<bool> goes_on = false;
  std::atomic<int> asked = 0;
  CapsuleJob first = job(1, 3 << 20);
  first.tried = [&](const std::string&) {
    while (!goes_on) std::this_thread::sleep_for(1ms);
    return std::string("identical");
  };
  EXPECT_TRUE(queue().add(std::move(first), 4 << 20, [] { return true; })) << "there is room: nobody is asked";
  EXPECT_FALSE(queue().add(job(2, 3 << 20), 4 << 20, [&] { return ++asked == 2; }));
  EXPECT_EQ(asked, 2);
  std::thread later([&] {
    std::this_thread::sleep_for(150ms);
    goes_on = true;
  });
  EXPECT_TRUE(queue().add(job(3, 3 << 20), 4 << 20, [] { return false; }));
  later.join();
  ASSERT_TRUE(queue().wait(60));
  EXPECT_TRUE(fs::exists(folder(3)));
  EXPECT_FALSE(fs::exists(folder(2)));
  const auto of_third = queue().take_done([&](const std::string& one) { return one == folder(3); });
  ASSERT_EQ(of_third.size(), 1u);
  EXPECT_EQ(of_third[0].folder, folder(3));
  EXPECT_EQ(queue().take_done().size(), 1u) << "that of the first is left for whoever asks for all";
}

TEST_F(CapsuleQueues, LeaveNothingOfWhatIsGivenUp) {
  CapsuleJob first = job(1);
  first.tried = [&](const std::string&) {
    while (!queue().given_up()) std::this_thread::sleep_for(1ms);
    return std::string("not tried (the program ended)");
  };
  queue().add(std::move(first), 1 << 30);
  std::this_thread::sleep_for(100ms);
  queue().add(job(2, 9 << 20), 1 << 30);
  queue().give_up();
  ASSERT_TRUE(queue().wait(60));
  const auto done = queue().take_done();
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].why_not, "");  // it was written, but for its replay
  EXPECT_EQ(about(folder(1))["replay"], "not tried (the program ended)");
  EXPECT_EQ(done[1].why_not, "was given up");
  EXPECT_EQ(std::distance(fs::directory_iterator(root_), fs::directory_iterator()), 1);
  queue().add(job(3), 1 << 30);  // those after it are none of them
  ASSERT_TRUE(queue().wait(60));
  EXPECT_EQ(about(folder(3))["step"], 3);
}

#ifndef __SANITIZE_THREAD__  // which lets no forked process begin a thread
TEST_F(CapsuleQueues, AForkedProcessHasItsOwn) {
  std::atomic<bool> begun = false;
  std::atomic<bool> goes_on = false;
  CapsuleJob first = job(1);
  first.tried = [&](const std::string&) {
    begun = true;
    while (!goes_on) std::this_thread::sleep_for(1ms);
    return std::string("identical");
  };
  queue().add(std::move(first), 1 << 30);
  // gcc's ASan keeps locks of its own over fork, which a thread that begins, ends or writes has: that of the test
  // before may still be ending.
  const auto threads = [] {
    return std::distance(fs::directory_iterator("/proc/self/task"), fs::directory_iterator());
  };
  for (int i = 0; !begun || (threads() > 2 && i < 5000); ++i) std::this_thread::sleep_for(1ms);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (!queue().wait(0) || !queue().take_done().empty()) _exit(1);
    queue().add(job(2), 1);
    _exit(queue().wait(60) && queue().take_done().size() == 1 ? 0 : 2);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(about(folder(2))["step"], 2);
  goes_on = true;
  ASSERT_TRUE(queue().wait(60));
  EXPECT_EQ(about(folder(1))["replay"], "identical");
}
#endif

}  // namespace
}  // namespace finitude::capture
