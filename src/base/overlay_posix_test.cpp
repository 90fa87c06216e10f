// Where user namespaces or overlayfs are refused, the reason is checked instead.
#include "base/overlay_posix.h"

#include <sys/wait.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace finitude::base {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::string line;
  std::getline(std::ifstream(path) >> std::ws, line);
  return line;
}

class OverlayTest : public testing::Test {
 protected:
  OverlayTest() {
    char name[] = "/tmp/finitude-overlay-XXXXXX";
    folder_ = mkdtemp(name);
    for (const char* inner : {"data/stays", "upper", "work"}) fs::create_directories(folder_ / inner);
    std::ofstream(folder_ / "data/a") << "before";
  }
  ~OverlayTest() override {
    std::error_code ignored;
    fs::permissions(folder_ / "work/work", fs::perms::owner_all, ignored);  // overlayfs leaves it without any
    fs::remove_all(folder_, ignored);
  }

  // In a child, as the namespace cannot be left again. Empty: `part` was true of it.
  std::string in_child(const std::function<std::string()>& part) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
      const std::string said = part();
      const bool sent = write(ends[1], said.data(), said.size()) == static_cast<ssize_t>(said.size());
      _exit(sent ? 0 : 1);
    }
    close(ends[1]);
    char said[512];
    const ssize_t size = read(ends[0], said, sizeof said);
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    return {said, static_cast<std::size_t>(size > 0 ? size : 0)};
  }
  Overlay overlay(const std::string& directory) const {
    return {folder_ / directory, folder_ / "upper", folder_ / "work"};
  }

  fs::path folder_;
};

TEST_F(OverlayTest, WhatIsWrittenLiesElsewhere) {
  const std::string said = in_child([&]() -> std::string {
    const Overlaid done = overlay_directories({overlay("data")}, {folder_ / "data/stays"});
    if (done.directories.empty()) return done.why;
    std::ofstream(folder_ / "data/a") << "after";
    fs::remove(folder_ / "data/none");
    std::ofstream(folder_ / "data/stays/b") << "kept";
    return "overlaid: " + text_of(folder_ / "data/a");
  });
  EXPECT_EQ(text_of(folder_ / "data/a"), "before");
  if (!said.starts_with("overlaid")) {
    EXPECT_THAT(said, testing::MatchesRegex("(unshare|mount /.*): (E[A-Z]+|errno [0-9]+)"));
    return;
  }
  EXPECT_EQ(said, "overlaid: after");
  EXPECT_EQ(text_of(folder_ / "upper/a"), "after");
  EXPECT_EQ(text_of(folder_ / "data/stays/b"), "kept");
}

TEST_F(OverlayTest, FailuresAreNamedByTheirErrno) {
  fs::create_directory(folder_ / "a,b");
  for (const auto& [directory, why] : {std::pair("none", "ENOENT"), std::pair("a,b", "EINVAL")}) {
    const std::string said = in_child([&, name = directory] {
      const Overlaid done = overlay_directories({overlay(name)}, {});
      return done.directories.empty() ? done.why : "overlaid";
    });
    if (said.starts_with("unshare: ")) continue;  // no namespaces here
    EXPECT_EQ(said, "mount " + (folder_ / directory).string() + ": " + why);
  }
}

TEST_F(OverlayTest, BirthIsNowOrNotKnown) {
  const double born = birth_time(folder_ / "data/a");
  if (born != 0) {
    EXPECT_NEAR(born, static_cast<double>(std::time(nullptr)), 60);
  }
  EXPECT_EQ(birth_time(folder_ / "none"), 0);
}

}  // namespace
}  // namespace finitude::base
