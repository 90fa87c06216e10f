#include "capture/checked_file_posix.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "base/checksum.h"

namespace finitude::capture {
namespace {

namespace fs = std::filesystem;

class CheckedFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = (fs::path(::testing::TempDir()) / ("checked-" + std::to_string(getpid()))).string();
    fs::remove(path_);
  }
  void TearDown() override { fs::remove(path_); }
  std::string content() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static std::string bytes(std::size_t size) {
    std::string text(size, '\0');
    for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>((i * 2654435761u) >> 13);
    return text;
  }

  std::string path_;
};

TEST_F(CheckedFiles, HoldWhatTheirPartsHold) {
  // Small ones, and those that a second thread reads back, cut at and beside the pieces that are written and read.
  for (const std::size_t size :
       {0, 1, 31, 4095, 1 << 18, (1 << 18) + 1, (4 << 20) - 1, (4 << 20) + 1, (9 << 20) + 77}) {
    const std::string whole = bytes(size);
    for (const std::size_t cut : {std::size_t{0}, std::size_t{13}, size / 2, size}) {
      const std::size_t first = std::min(cut, size);
      const std::string_view view = whole;
      for (const ReadBackBy by : {ReadBackBy::kAnotherThread, ReadBackBy::kTheSame}) {
        fs::remove(path_);
        CheckedFile file;
        ASSERT_EQ(write_checked(path_, {view.substr(0, first), {}, view.substr(first)}, nullptr, &file, by).why(), "")
            << size;
        EXPECT_EQ(file.bytes, size);
        EXPECT_EQ(file.checksum, base::checksum(whole.data(), whole.size())) << size << " " << cut;
        EXPECT_TRUE(content() == whole) << size;
      }
    }
  }
}

TEST_F(CheckedFiles, AreNew) {
  CheckedFile file;
  ASSERT_TRUE(write_checked(path_, {"a"}, nullptr, &file).ok());
  EXPECT_NE(write_checked(path_, {"b"}, nullptr, &file).why(), "");
  EXPECT_EQ(content(), "a");
  EXPECT_NE(write_checked(path_ + "/no/such", {"b"}, nullptr, &file).why(), "");
}

TEST_F(CheckedFiles, EndEarly) {
  const std::atomic<bool> cancelled = true;
  CheckedFile file;
  EXPECT_EQ(write_checked(path_, {bytes(8 << 20)}, &cancelled, &file).why(), "was given up");
  EXPECT_EQ(fs::file_size(path_), 0u);
}

TEST_F(CheckedFiles, ReportThatTheDiskIsFull) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{6 << 20, 6 << 20};
    setrlimit(RLIMIT_FSIZE, &limit);
    CheckedFile file;
    _exit(write_checked(path_, {bytes(9 << 20)}, nullptr, &file).why() == "cannot be written: File too large" ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// What comes back is not what was written: another process writes into the file.
TEST_F(CheckedFiles, ReportThatOtherBytesWereReadBack) {
  const std::string whole = bytes(24 << 20);
  bool reported = false;
  for (int round = 0; round < 50 && !reported; ++round) {
    fs::remove(path_);
    std::atomic<bool> over = false;
    std::thread other([&] {
      while (!over) {
        std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
        if (file) file.seekp(round * 1000) << "something else";
      }
    });
    CheckedFile file;
    const std::string why = write_checked(path_, {whole}, nullptr, &file).why();
    over = true;
    other.join();
    reported = why == "cannot be written: what was read back is something else";
    if (!reported) {
      EXPECT_EQ(why, "");
    }
  }
  EXPECT_TRUE(reported);
}

}  // namespace
}  // namespace finitude::capture
