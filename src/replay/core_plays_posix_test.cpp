#include "replay/core_plays_posix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

namespace finitude::replay {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A player that is a script: $core is the one that it is to play on.
class CorePlaysTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) / ("cores-" + std::to_string(getpid()));
    fs::create_directories(root_);
  }
  void TearDown() override {
    EXPECT_TRUE(waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD) << "a process is left";
    fs::remove_all(root_);
  }
  CoreRun played_by(const std::string& script, double seconds = 60) const {
    CoreTest test;
    test.player = (root_ / "player").string();
    std::ofstream(test.player) << "#!/bin/sh\n"
                               << "while test \"$1\" != --on-core; do shift; done; core=$2; test $3 = -- || exit 9\n"
                               << script << "\n";
    chmod(test.player.c_str(), 0755);
    test.capsule = "capsule";
    test.cores = {10, 11, 12};
    test.times = 2;
    test.seconds = seconds;
    return play_on_cores(test);
  }

  fs::path root_;
};

CoreTask two_results() { return {{"loss", "gradient w"}, {1, 255}, 2}; }

TEST_F(CorePlaysTest, EachCoreGivesItsPlays) {
  const CoreRun run = played_by("echo played: 1 ff; echo noise; echo played: 1 ff");
  EXPECT_EQ(run.stopped, "");
  ASSERT_EQ(run.cores.size(), 3u);
  EXPECT_EQ(run.cores[1].name, "core 11");
  ASSERT_EQ(run.cores[1].plays.size(), 2u);
  EXPECT_THAT(run.cores[1].plays[0].checksums, ElementsAre(1, 255));
  EXPECT_EQ(judge_cores(run.cores, two_results()).code, 0);
}

TEST_F(CorePlaysTest, AnOddCoreIsFound) {
  const CoreRun run = played_by("echo played: 1 ff; test $core = 11 && echo played: 1 fe || echo played: 1 ff");
  const Reported reported = judge_cores(run.cores, two_results());
  EXPECT_EQ(reported.code, 1);
  EXPECT_THAT(reported.text, HasSubstr("core 11: gradient w differs in 1 of 2 plays\nthe other 2 cores agree"));
}

TEST_F(CorePlaysTest, AProcessThatDiesIsAFailureOfItsCore) {
  const CoreRun run = played_by("echo played: 1 ff; test $core = 12 && kill -SEGV $$; echo played: 1 ff");
  const Reported reported = judge_cores(run.cores, two_results());
  EXPECT_EQ(reported.code, 1);
  EXPECT_THAT(reported.text, HasSubstr("core 12: 1 of 2 plays failed: its process was ended by signal 11\n"));
  const CoreRun none = played_by("exit 3");
  EXPECT_THAT(judge_cores(none.cores, two_results()).text, HasSubstr("its process ended with exit code 3"));
}

TEST_F(CorePlaysTest, TheTimeIsBounded) {
  const CoreRun run = played_by("echo played: 1 ff; exec sleep 100", 0.5);
  EXPECT_EQ(run.stopped, "the time was up");
  EXPECT_EQ(run.cores[0].plays.size(), 1u);
  EXPECT_EQ(judge_cores(run.cores, two_results()).code, 4);
}

TEST_F(CorePlaysTest, ASignalEndsItAndHasItsOldEffectAfterwards) {
  struct sigaction ignored {
  }, before{}, after{};
  ignored.sa_handler = SIG_IGN;
  sigaction(SIGINT, &ignored, &before);
  std::thread sender([] {
    std::this_thread::sleep_for(300ms);
    kill(getpid(), SIGINT);
  });
  const CoreRun run = played_by("exec sleep 100");
  sender.join();
  EXPECT_EQ(run.stopped, "stopped by a signal");
  sigaction(SIGINT, &before, &after);
  EXPECT_EQ(after.sa_handler, SIG_IGN);
}

TEST(CorePlayLines, ComeBackAsTheyWere) {
  for (const CorePlay& play :
       {CorePlay{{0, 0xffffffffffffffff}, ""}, CorePlay{{}, "a call\nfailed"}, CorePlay{{7}, ""}}) {
    std::string line = play_line(play);
    ASSERT_EQ(line.back(), '\n');
    line.pop_back();
    CorePlay back;
    ASSERT_TRUE(read_play_line(line, &back));
    EXPECT_EQ(back.checksums, play.checksums);
    EXPECT_EQ(back.failure.empty(), play.failure.empty());
  }
  CorePlay play;
  for (const char* line : {"", "played", "played: x", "played:1", "failed: ", "other"})
    EXPECT_FALSE(read_play_line(line, &play)) << line;
}

}  // namespace
}  // namespace finitude::replay
