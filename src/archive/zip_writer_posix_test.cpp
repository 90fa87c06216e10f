#include "archive/zip_writer_posix.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "archive/zip.h"

namespace finitude::archive {
namespace {

class ZipWriterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    descriptor_ = mkstemp(path_.data());
    ASSERT_GE(descriptor_, 0);
  }
  void TearDown() override {
    close(descriptor_);
    unlink(path_.c_str());
  }

  std::string archive_of(const std::vector<std::pair<std::string, std::string>>& entries) {
    EXPECT_EQ(ftruncate(descriptor_, 0), 0);
    ZipWriter writer(descriptor_);
    for (const auto& [name, content] : entries)
      EXPECT_TRUE(writer.add(name, {File::of_bytes(content), 0, content.size()}).ok());
    EXPECT_TRUE(writer.finish().ok());
    const auto file = File::open(path_);
    std::string bytes((*file)->bytes(), '\0');
    EXPECT_TRUE((*file)->read(0, bytes.data(), bytes.size()).ok());
    return bytes;
  }

  std::string path_ = ::testing::TempDir() + "zip-writer-XXXXXX";
  int descriptor_ = -1;
};

// 2.5 MiB, more than what is compressed at once; with seed 0 of one byte.
std::string content(unsigned seed) {
  std::string bytes(std::size_t{5} << 19, 'x');
  for (std::size_t i = 0; seed != 0 && i < bytes.size(); ++i)
    bytes[i] = static_cast<char>((seed = seed * 1664525U + 1013904223U) >> 24);
  return bytes;
}

TEST_F(ZipWriterTest, ReaderGetsBackWhatWasWritten) {
  const std::vector<std::pair<std::string, std::string>> given{{"a", "tape tape tape"},
                                                               {"empty", ""},
                                                               {"b.bin", content(0)},
                                                               {"chunk", std::string(std::size_t{1} << 20, 'y')},
                                                               {"noise", content(7)}};
  const std::string bytes = archive_of(given);
  std::vector<ZipEntry> entries;
  ASSERT_TRUE(read_zip({File::of_bytes(bytes), 0, bytes.size()}, &entries).ok());
  ASSERT_EQ(entries.size(), given.size());
  for (std::size_t i = 0; i < given.size(); ++i) {
    std::string got;
    ASSERT_TRUE(entries[i].read(std::uint64_t{1} << 30, &got).ok()) << given[i].first;
    EXPECT_EQ(entries[i].name, given[i].first);
    EXPECT_TRUE(got == given[i].second) << given[i].first;
    EXPECT_EQ(entries[i].mode, 0100644U);
  }
  EXPECT_LT(entries[2].packed.bytes, 20000U);
}

TEST_F(ZipWriterTest, SameContentMakesSameArchive) {
  EXPECT_EQ(archive_of({{"a", "1"}, {"b", content(3)}}), archive_of({{"a", "1"}, {"b", content(3)}}));
}

TEST_F(ZipWriterTest, CancelledWriterStops) {
  const std::atomic<bool> cancelled = true;
  ZipWriter writer(descriptor_, &cancelled);
  EXPECT_EQ(writer.add("a", {File::of_bytes("1"), 0, 1}).code(), StatusCode::kStopped);
}

TEST_F(ZipWriterTest, RefusedWriteIsUnwritable) {
  const int reader = ::dup(descriptor_);
  close(reader);
  ZipWriter writer(reader);
  EXPECT_EQ(writer.add("a", {File::of_bytes("1"), 0, 1}).code(), StatusCode::kUnwritable);
}

}  // namespace
}  // namespace finitude::archive
