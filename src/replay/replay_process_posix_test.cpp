#include "replay/replay_process_posix.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

namespace finitude::replay {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

class ReplayedApart : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) / ("apart-" + std::to_string(getpid()));
    fs::remove_all(root_);
    fs::create_directories(root_ / "capsule");
  }
  void TearDown() override {
    EXPECT_TRUE(fs::is_empty(root_ / "capsule"));
    fs::remove_all(root_);
  }
  std::string said_by(const std::string& script, const std::atomic<bool>* cancelled = nullptr) const {
    const std::string player = (root_ / "player").string();
    std::ofstream(player) << "#!/bin/sh\n" << script << "\n";
    chmod(player.c_str(), 0755);
    return replayed_apart(player, (root_ / "capsule").string(), cancelled);
  }

  fs::path root_;
};

TEST_F(ReplayedApart, SaysWhatTheProgramSays) {
  EXPECT_EQ(said_by("test \"$1\" = --check && test -d \"$2\" && echo identical && echo more"), "identical");
  EXPECT_EQ(said_by("echo other bits; exit 1"), "other bits");
  // Nothing of this process reaches it but its environment.
  int open_here[2];
  ASSERT_EQ(pipe(open_here), 0);
  EXPECT_EQ(said_by("ls /proc/self/fd | wc -w | tr -d ' '; read line && echo read"), "4");  // 0, 1, 2 and that of ls
  close(open_here[0]);
  close(open_here[1]);
}

TEST_F(ReplayedApart, AnyFailureIsNoReplay) {
  const std::string failed = "not tried (the process that was to do it failed)";
  EXPECT_EQ(said_by("exit 0"), failed);
  EXPECT_EQ(said_by("printf ident; kill -9 $$"), failed);
  const std::string nowhere = (root_ / "nowhere").string();
  EXPECT_EQ(replayed_apart(nowhere, (root_ / "capsule").string(), nullptr),
            "not tried (" + nowhere + ": No such file or directory)");
}

TEST_F(ReplayedApart, EndsWhereTheProgramDoes) {
  std::atomic<bool> over = false;
  std::thread later([&] {
    std::this_thread::sleep_for(100ms);
    over = true;
  });
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(said_by("exec sleep 100", &over), "not tried (the program ended)");
  EXPECT_LT(std::chrono::steady_clock::now() - began, 20s);
  later.join();
}

// The system then takes the child away itself.
TEST_F(ReplayedApart, WhereTheProgramIgnoresItsChildren) {
  const auto before = signal(SIGCHLD, SIG_IGN);
  EXPECT_EQ(said_by("sleep 0.1; echo identical"), "identical");
  signal(SIGCHLD, before);
}

}  // namespace
}  // namespace finitude::replay
