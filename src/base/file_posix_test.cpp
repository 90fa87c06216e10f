// Files that are none: a reader of other people's folders must come to an end.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace finitude::base {
namespace {

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/finitude-file-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string at(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

TEST(File, IsReadWhole) {
  const Folder folder;
  std::ofstream(folder.at("a")) << std::string(70000, 'x');
  std::string bytes = "before";
  ASSERT_TRUE(read_file(folder.at("a"), &bytes).ok());
  EXPECT_EQ(bytes, std::string(70000, 'x'));
}

TEST(File, IsWrittenWholeOrStaysAsItWas) {
  const Folder folder;
  const std::string path = folder.at("a");
  ASSERT_TRUE(write_whole(path, {"one ", "", "two"}).ok());
  std::string bytes;
  ASSERT_TRUE(read_file(path, &bytes).ok());
  EXPECT_EQ(bytes, "one two");
  ASSERT_EQ(mkdir(folder.at("a.partial").c_str(), 0700), 0);  // nothing can be written under that name
  EXPECT_EQ(write_whole(path, {"other"}).why(), "cannot be written: Is a directory");
  ASSERT_TRUE(read_file(path, &bytes).ok());
  EXPECT_EQ(bytes, "one two");
  EXPECT_EQ(write_whole(folder.at("none/a"), {"x"}).why(), "cannot be written: No such file or directory");
}

TEST(File, ADeviceIsWrittenAsItIs) {
  const Folder folder;
  EXPECT_TRUE(write_whole("/dev/null", {"x"}).ok());
  ASSERT_EQ(symlink("/dev/full", folder.at("full").c_str()), 0);
  EXPECT_EQ(write_whole(folder.at("full"), {"x"}).why(), "cannot be written: No space left on device");
  EXPECT_TRUE(std::filesystem::is_symlink(folder.at("full")));
}

TEST(File, APipeIsNotWaitedFor) {
  const Folder folder;
  ASSERT_EQ(mkfifo(folder.at("pipe").c_str(), 0600), 0);
  std::string bytes;
  EXPECT_EQ(read_file(folder.at("pipe"), &bytes).why(), "is no plain file");
}

TEST(File, ADeviceAndAFolderAreRefused) {
  std::string bytes;
  EXPECT_EQ(read_file("/dev/zero", &bytes).why(), "is no plain file");
  EXPECT_EQ(read_file("/tmp", &bytes).why(), "is a folder");
  EXPECT_THAT(read_file("/tmp/finitude-there-is-none", &bytes).why(),
              testing::StartsWith("cannot be opened: No such file"));
}

TEST(File, TooLargeFilesAreRefusedUnread) {
  const Folder folder;
  std::ofstream(folder.at("sparse")).close();
  ASSERT_EQ(truncate(folder.at("sparse").c_str(), off_t{20} << 30), 0);
  std::string bytes;
  EXPECT_EQ(read_file(folder.at("sparse"), &bytes, 1 << 20).why(), "is larger than 1 MiB");
  EXPECT_TRUE(bytes.empty());
}

TEST(File, TheCodeSaysWhatKindOfFailure) {
  const Folder folder;
  std::string bytes;
  std::ofstream(folder.at("a")) << "1234";
  EXPECT_EQ(read_file(folder.at("a"), &bytes, 3).code(), StatusCode::kTooLarge);
  EXPECT_EQ(read_file(folder.at("none"), &bytes).code(), StatusCode::kUnreadable);
  EXPECT_EQ(read_file(folder.at("."), &bytes).code(), StatusCode::kUnreadable);
  EXPECT_EQ(write_whole(folder.at("no/such"), {"x"}).code(), StatusCode::kUnwritable);
}

}  // namespace
}  // namespace finitude::base
