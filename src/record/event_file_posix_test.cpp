#include "record/event_file_posix.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "base/file.h"

namespace finitude::record {
namespace {

class Folder {
 public:
  Folder() { path_ = mkdtemp(name_); }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string at(const std::string& name) const { return path_ + "/" + name; }
  std::string text() const {
    std::string bytes;
    return base::read_file(at("events.jsonl"), &bytes).ok() ? bytes : "";
  }
  std::string path() const { return path_; }

 private:
  char name_[32] = "/tmp/finitude-test-XXXXXX";
  std::string path_;
};

TEST(EventFile, AppendsWholeLinesToWhatIsThere) {
  const Folder folder;
  {
    EventFile file;
    EXPECT_EQ(file.append("a\n", [&] { return folder.path(); }), "");
    EXPECT_EQ(file.append("b\n", [&] { return std::string("not asked again"); }), "");
  }
  EventFile again;
  EXPECT_EQ(again.append("c\n", [&] { return folder.path(); }), "");
  again.close();
  EXPECT_EQ(again.append("after the end\n", [&] { return folder.path(); }), "");
  EXPECT_EQ(folder.text(), "a\nb\nc\n");
}

TEST(EventFile, IsOpenedOnceWhereTheFolderBeginsWithALine) {
  const Folder folder;
  EventFile file;
  const int next = open("/dev/null", O_RDONLY);
  close(next);
  EXPECT_EQ(file.append("second\n",
                        [&] {
                          EXPECT_EQ(file.append("first\n", [&] { return folder.path(); }), "");
                          return folder.path();
                        }),
            "");
  file.close();
  EXPECT_EQ(folder.text(), "first\nsecond\n");
  const int then = open("/dev/null", O_RDONLY);
  EXPECT_EQ(then, next) << "a descriptor was left open";
  close(then);
}

TEST(EventFile, TheFirstFailureIsReportedOnceAndEndsIt) {
  const Folder folder;
  EventFile file;
  EXPECT_EQ(file.append("a\n", [&] { return folder.at("none"); }), "No such file or directory");
  EXPECT_EQ(file.append("b\n", [&] { return folder.path(); }), "");
  EXPECT_EQ(folder.text(), "");
  EventFile without;
  EXPECT_EQ(without.append("a\n", [] { return std::string(); }), "");
  EXPECT_EQ(without.append("b\n", [&] { return folder.path(); }), "");
  EXPECT_EQ(folder.text(), "");
}

TEST(EventFile, AForkedProcessHasAFileOfItsOwn) {
  const Folder parents, childs;
  EventFile file;
  ASSERT_EQ(file.append("parent\n", [&] { return parents.path(); }), "");
  const pid_t child = fork();
  if (child == 0) _exit(file.append("child\n", [&] { return childs.path(); }).empty() ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(file.append("parent\n", [&] { return parents.path(); }), "");
  EXPECT_EQ(parents.text(), "parent\nparent\n");
  EXPECT_EQ(childs.text(), "child\n");
}

}  // namespace
}  // namespace finitude::record
