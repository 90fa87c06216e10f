// Processes that end in the middle of writing a capsule, and several that write one at once.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "capture/capsule.h"
#include "capture/testing.h"

namespace finitude::capture {
namespace {

namespace fs = std::filesystem;

class CapsuleProcesses : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) /
            ("capsule-processes-" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  // 2 MB beside the tape, so that writing takes a while.
  static std::string write(const fs::path& folder) {
    const std::string bytes(std::size_t{2} << 20, 'x');
    return write_capsule(folder.string(), whole_tape(), nlohmann::json::object(), {},
                         {{"table", "U8", {static_cast<std::int64_t>(bytes.size())}, bytes}})
        .why();
  }

  static std::string why_not(const fs::path& folder) {
    nlohmann::json about;
    Tape tape;
    TensorBytes start;
    return read_capsule(folder.string(), &about, &tape, &start).why();
  }

  std::vector<fs::path> entries(bool partial) const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(root_)) {
      const bool is_partial = entry.path().filename().string().find(".partial-") != std::string::npos;
      if (is_partial == partial) found.push_back(entry.path());
    }
    return found;
  }

  fs::path root_;
};

TEST_F(CapsuleProcesses, KilledWriterLeavesNoSeeminglyWholeCapsule) {
  int whole = 0, parts = 0;
  for (int round = 0; round < 60; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (int i = 0;; ++i) write(root_ / ("step-" + std::to_string(i)));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(1000 + 731 * round));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    for (const fs::path& folder : entries(/*partial=*/false)) {
      EXPECT_EQ(why_not(folder), "") << folder;
      ++whole;
    }
    parts += static_cast<int>(entries(/*partial=*/true).size());
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  EXPECT_GT(whole, 0);
  EXPECT_GT(parts, 0);  // else nothing was tried
}

TEST_F(CapsuleProcesses, OneOfSeveralSimultaneousWritersHasIt) {
  for (int round = 0; round < 10; ++round) {
    const fs::path folder = root_ / ("step-" + std::to_string(round));
    int gate[2];
    ASSERT_EQ(pipe(gate), 0);
    std::vector<pid_t> children;
    for (int i = 0; i < 4; ++i) {
      children.push_back(fork());
      ASSERT_GE(children.back(), 0);
      if (children.back() != 0) continue;
      close(gate[1]);
      char unused = 0;
      [[maybe_unused]] const auto ended = read(gate[0], &unused, 1);  // until all are there
      _exit(write(folder).empty() ? 0 : 1);
    }
    close(gate[0]);
    close(gate[1]);
    int wrote = 0;
    for (const pid_t child : children) {
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      ASSERT_TRUE(WIFEXITED(status));
      wrote += WEXITSTATUS(status) == 0;
    }
    EXPECT_EQ(wrote, 1);
    EXPECT_EQ(why_not(folder), "");
  }
  EXPECT_EQ(entries(/*partial=*/true).size(), 0u);
}

}  // namespace
}  // namespace finitude::capture
