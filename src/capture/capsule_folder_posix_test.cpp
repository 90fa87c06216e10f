#include "capture/capsule_folder_posix.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace finitude::capture {
namespace {

namespace fs = std::filesystem;

class CapsuleFolders : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) / ("capsule-folders-" + std::to_string(getpid()));
    fs::remove_all(root_);
    fs::create_directories(root_ / "run" / "rank-1");
  }
  void TearDown() override { fs::remove_all(root_); }

  // The name that a process gives it that is still there, or killed since.
  std::string made_by_another(const fs::path& folder, bool killed, pid_t* process) const {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    *process = fork();
    if (*process == 0) {
      std::string partial;
      const bool made = make_partial(folder.string(), &partial).ok();
      [[maybe_unused]] const auto reported = write(ready[1], made ? partial.data() : "", made ? partial.size() : 0);
      close(ready[1]);
      pause();
      _exit(0);
    }
    close(ready[1]);
    std::string partial(4096, '\0');
    const ssize_t got = read(ready[0], partial.data(), partial.size());
    close(ready[0]);
    partial.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    if (killed) end(*process);
    return partial;
  }
  static void end(pid_t process) {
    kill(process, SIGKILL);
    int status = 0;
    waitpid(process, &status, 0);
  }
  static std::string name(const std::string& path) { return fs::path(path).filename().string(); }

  fs::path root_;
};

TEST_F(CapsuleFolders, OnlyThoseOfGoneProcessesAreRemoved) {
  std::string own;
  ASSERT_EQ(make_partial((root_ / "run" / "step-000001").string(), &own).why(), "");
  pid_t dead = 0, alive = 0;
  const std::string left = made_by_another(root_ / "run" / "step-000002", true, &dead);
  const std::string deep = made_by_another(root_ / "run" / "rank-1" / "step-000002-optimizer-1", true, &dead);
  const std::string living = made_by_another(root_ / "run" / "step-000003", false, &alive);
  ASSERT_NE(left, "");
  std::ofstream(left + "/tape.bin") << "x";
  EXPECT_TRUE(is_left_behind(name(left)));
  EXPECT_FALSE(is_left_behind(name(own)));
  EXPECT_FALSE(is_left_behind(name(living)));
  // One whose number another process has by now: ours began at another time.
  const std::size_t at = name(own).rfind(".partial-"), machine_end = name(own).find('-', at + 9);
  const std::string machine = name(own).substr(at, machine_end - at);
  EXPECT_TRUE(is_left_behind("step-000001" + machine + "-" + std::to_string(getpid()) + "-17-0"));
  // Of another machine or container, of a form that does not say, of nobody.
  std::string elsewhere = name(left);
  elsewhere[at + 9] = elsewhere[at + 9] == '0' ? '1' : '0';
  const std::string others[] = {elsewhere,
                                "step-000001.partial-1234abcd",
                                "step-000001.partial-0-1-2-3",
                                "step-000001",
                                "notes" + machine + "-1-2-3",
                                "step-1" + machine + "-0-0-0",
                                "step-1" + machine + "-99999999999-5-0",
                                "step-1" + machine + "-7-5-0x",
                                "step-1" + machine + "-7-5"};
  for (const std::string& other : others) {
    EXPECT_FALSE(is_left_behind(other)) << other;
    fs::create_directory(root_ / "run" / other);
  }
  // A link to what would be removed is left, and so is what it leads to.
  const fs::path outside = root_.string() + "-outside";
  fs::create_directories(outside / name(left));
  fs::create_directory_symlink(outside, root_ / "linked");
  const auto is_whole = [&](const std::string& folder) { return folder == deep; };
  const std::vector<LeftBehind> settled = settle_left_behind(root_.string(), is_whole);
  ASSERT_EQ(settled.size(), 2u);
  for (const LeftBehind& one : settled) {
    EXPECT_EQ(one.kept_as, one.folder == deep ? (root_ / "run" / "rank-1" / "step-000002-optimizer-1").string() : "");
  }
  EXPECT_TRUE(fs::exists(root_ / "run" / "rank-1" / "step-000002-optimizer-1"));
  EXPECT_FALSE(fs::exists(left));
  EXPECT_FALSE(fs::exists(deep));
  for (const std::string& kept : {own, living, (outside / name(left)).string()}) EXPECT_TRUE(fs::exists(kept)) << kept;
  for (const std::string& kept : others) EXPECT_TRUE(fs::exists(root_ / "run" / kept)) << kept;
  end(alive);
  settle_left_behind(root_.string(), {});
  EXPECT_FALSE(fs::exists(living));
  EXPECT_TRUE(fs::exists(own));
  fs::remove_all(outside);
  EXPECT_TRUE(settle_left_behind((root_ / "nowhere").string(), {}).empty());
}

TEST_F(CapsuleFolders, HaveNamesOfTheirOwn) {
  std::string one, two;
  const std::string folder = (root_ / "run" / "step-000001").string();
  ASSERT_TRUE(make_partial(folder, &one).ok());
  ASSERT_TRUE(make_partial(folder, &two).ok());
  EXPECT_NE(one, two);
  EXPECT_NE(make_partial((root_ / "no" / "step-1").string(), &one).why(), "");
}

}  // namespace
}  // namespace finitude::capture
