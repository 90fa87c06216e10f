#include "capture/pack_capsule_posix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/file.h"
#include "capture/capsule.h"
#include "capture/testing.h"

namespace finitude::capture {
namespace {

namespace fs = std::filesystem;

class PackCapsuleTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::path(::testing::TempDir()) / ("pack-" + std::string(info->name()));
    fs::remove_all(root_);
    fs::create_directories(root_);
    folder_ = (root_ / "step-1 \xc3\xbc").string();
    const std::string table(4096, 't');
    ASSERT_TRUE(
        write_capsule(folder_, whole_tape(), nlohmann::json::object(), {}, {{"table", "U8", {4096}, table}}).ok());
  }
  void TearDown() override { fs::remove_all(root_); }

  static std::string bytes_of(const fs::path& path) {
    std::string bytes;
    EXPECT_TRUE(base::read_file(path.string(), &bytes).ok()) << path;
    return bytes;
  }
  static std::map<std::string, std::string> files_of(const fs::path& folder) {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(folder))
      files[entry.path().filename().string()] = bytes_of(entry.path());
    return files;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(root_)) found.push_back(entry.path().filename().string());
    std::ranges::sort(found);
    return found;
  }
  std::string at(const std::string& name) const { return (root_ / name).string(); }

  fs::path root_;
  std::string folder_;
};

TEST_F(PackCapsuleTest, UnpackedFilesAreThosePacked) {
  const std::map<std::string, std::string> before = files_of(folder_);
  ASSERT_TRUE(base::write_whole(folder_ + "/my notes.txt", {"not part of it"}).ok());
  ASSERT_TRUE(pack_capsule(folder_, at("a.zip")).ok());
  EXPECT_TRUE(is_packed_capsule(at("a.zip")));
  ASSERT_TRUE(unpack_capsule(at("a.zip"), at("back")).ok());
  EXPECT_EQ(files_of(at("back")), before);
  EXPECT_EQ(names(), (std::vector<std::string>{"a.zip", "back", "step-1 \xc3\xbc"}));
}

TEST_F(PackCapsuleTest, FolderThatIsNoWholeCapsuleIsRefused) {
  const auto why = [&] { return pack_capsule(folder_, at("a.zip")).why(); };
  fs::rename(folder_ + "/tape.bin", at("elsewhere"));
  EXPECT_EQ(why().find("tape.bin"), 0U) << why();
  fs::create_symlink(at("elsewhere"), folder_ + "/tape.bin");
  EXPECT_EQ(why(), "is not whole: tape.bin is a link");
  fs::remove(folder_ + "/tape.bin");
  ASSERT_TRUE(base::write_whole(folder_ + "/tape.bin", {bytes_of(at("elsewhere")) + "x"}).ok());
  EXPECT_EQ(why().find("tape.bin"), 0U) << why();
  fs::rename(at("elsewhere"), folder_ + "/tape.bin");
  EXPECT_TRUE(pack_capsule(folder_, at("b.zip")).ok());
  fs::remove(folder_ + "/capsule.json");
  EXPECT_EQ(why().find("is no capsule"), 0U) << why();
  for (const char* text :
       {R"({"schema": 1, "files": []})", R"({"schema": 1, "files": {"../x": {"bytes": 1}}})", "nonsense", ""}) {
    ASSERT_TRUE(base::write_whole(folder_ + "/capsule.json", {text}).ok());
    EXPECT_FALSE(why().empty()) << text;
  }
  EXPECT_EQ(pack_capsule(at("b.zip"), at("a.zip")).why(), "is packed already");
  EXPECT_EQ(names(), (std::vector<std::string>{"b.zip", "step-1 \xc3\xbc"}));
}

TEST_F(PackCapsuleTest, OnlyPackedCapsulesAreReplaced) {
  ASSERT_TRUE(pack_capsule(folder_, at("a.zip")).ok());
  EXPECT_TRUE(pack_capsule(folder_, at("a.zip")).ok());
  ASSERT_TRUE(base::write_whole(at("train.py"), {"import torch"}).ok());
  for (const std::string& target : {at("train.py"), root_.string(), at("nowhere/a.zip")})
    EXPECT_EQ(pack_capsule(folder_, target).code(), StatusCode::kUnwritable) << target;
  EXPECT_EQ(bytes_of(at("train.py")), "import torch");
  fs::create_directory(at("there"));
  EXPECT_EQ(unpack_capsule(at("a.zip"), at("there")).why(), "is not unpacked: " + at("there") + " is there already");
  EXPECT_EQ(unpack_capsule(at("a.zip"), at("nowhere/a")).code(), StatusCode::kUnwritable);
  EXPECT_EQ(unpack_capsule(at("a.zip"), at("back"), 1000).code(), StatusCode::kTooLarge);
  EXPECT_EQ(names(), (std::vector<std::string>{"a.zip", "step-1 \xc3\xbc", "there", "train.py"}));
}

TEST_F(PackCapsuleTest, CancelledLeavesNothing) {
  const std::atomic<bool> cancelled = true;
  EXPECT_EQ(pack_capsule(folder_, at("a.zip"), &cancelled).code(), StatusCode::kStopped);
  ASSERT_TRUE(pack_capsule(folder_, at("b.zip")).ok());
  EXPECT_EQ(unpack_capsule(at("b.zip"), at("back"), kMaxUnpacked, &cancelled).code(), StatusCode::kStopped);
  EXPECT_EQ(names(), (std::vector<std::string>{"b.zip", "step-1 \xc3\xbc"}));
}

// Any byte may have any value: nothing stays of what is refused, and what is taken is what was packed.
TEST_F(PackCapsuleTest, DamagedArchiveIsRefusedOrIntact) {
  ASSERT_TRUE(pack_capsule(folder_, at("a.zip")).ok());
  const std::map<std::string, std::string> files = files_of(folder_);
  const std::string whole = bytes_of(at("a.zip"));
  std::mt19937 draw(5);
  int refused = 0;
  constexpr int kRounds = 2000;
  for (int round = 0; round < kRounds; ++round) {
    std::string bytes = whole;
    for (unsigned i = 0; i <= draw() % 3 && !bytes.empty(); ++i) {
      if (draw() % 10 == 0)
        bytes.resize(draw() % bytes.size());
      else
        bytes[draw() % bytes.size()] = static_cast<char>(draw());
    }
    ASSERT_TRUE(base::write_whole(at("a.zip"), {bytes}).ok());
    if (unpack_capsule(at("a.zip"), at("back")).ok()) {
      ASSERT_EQ(files_of(at("back")), files) << round;
      fs::remove_all(at("back"));
    } else {
      ++refused;
    }
    ASSERT_EQ(names(), (std::vector<std::string>{"a.zip", "step-1 \xc3\xbc"})) << round;
  }
  EXPECT_GT(refused, kRounds / 2);
}

// The same of a description without a checksum of its own, so that what it says is read.
TEST_F(PackCapsuleTest, DamagedDescriptionIsRefusedOrPacked) {
  nlohmann::json about = nlohmann::json::parse(bytes_of(folder_ + "/capsule.json"));
  about.erase("checksum");
  const std::string whole = about.dump();
  std::mt19937 draw(6);
  int refused = 0;
  constexpr int kRounds = 1500;
  for (int round = 0; round < kRounds; ++round) {
    std::string bytes = whole;
    for (unsigned i = 0; i <= draw() % 2; ++i) bytes[draw() % bytes.size()] = "0123456789{}[]\",:-."[draw() % 19];
    ASSERT_TRUE(base::write_whole(folder_ + "/capsule.json", {bytes}).ok());
    if (pack_capsule(folder_, at("a.zip")).ok()) {
      ASSERT_TRUE(unpack_capsule(at("a.zip"), at("back")).ok()) << bytes;
      fs::remove_all(at("back"));
      fs::remove(at("a.zip"));
    } else {
      ++refused;
    }
    ASSERT_EQ(names(), (std::vector<std::string>{"step-1 \xc3\xbc"})) << bytes;
  }
  EXPECT_GT(refused, kRounds / 10);
}

}  // namespace
}  // namespace finitude::capture
