#include "capture/capsule.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "capture/own_checksum.h"
#include "capture/step_statistics.h"
#include "capture/tape_file.h"
#include "capture/testing.h"
#include "capture/testing_trace.h"

namespace finitude::capture {
namespace {

namespace fs = std::filesystem;

class Capsule : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) /
            ("capsule-" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::remove_all(root_);
    fs::create_directories(root_);
    folder_ = (root_ / "step-000003").string();
  }
  void TearDown() override { fs::remove_all(root_); }

  std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(root_), fs::directory_iterator()));
  }
  std::string content(const char* name) const {
    std::string bytes;
    EXPECT_TRUE(base::read_file((fs::path(folder_) / name).string(), &bytes).ok());
    return bytes;
  }
  void put(const char* name, const std::string& bytes) const {
    std::ofstream(fs::path(folder_) / name, std::ios::binary) << bytes;
  }
  std::string why() const {
    nlohmann::json about;
    Tape tape;
    return read_capsule(folder_, &about, &tape).why();
  }

  fs::path root_;
  std::string folder_;
};

TEST_F(Capsule, ComesBackAsItWas) {
  ASSERT_EQ(write_capsule(folder_, whole_tape(), {{"step", 3}}, {}).why(), "");
  EXPECT_EQ(entries(), 1u);
  nlohmann::json about;
  Tape tape;
  ASSERT_EQ(read_capsule(folder_, &about, &tape).why(), "");
  EXPECT_EQ(about["step"], 3);
  EXPECT_EQ(about["schema"], kCapsuleSchema);
  EXPECT_EQ(tape.storages[0].bytes, "0123456789abcdef");
  EXPECT_EQ(tape.storages[0].external, "parameter.weight");
  EXPECT_EQ(tape.storages[3].bytes, "87654321");
  EXPECT_EQ(tape.entries.size(), whole_tape().entries.size());
  EXPECT_NE(
      content("tensors.safetensors").find(R"("parameter.weight":{"data_offsets":[0,16],"dtype":"F32","shape":[2,2]})"),
      std::string::npos);
}

TEST_F(Capsule, StatisticsAreAFileOfTheirOwn) {
  Tape tape = whole_tape();
  nlohmann::json about;
  record::Trace trace;
  ASSERT_EQ(write_capsule(folder_, tape, {{"step", 3}}, {}).why(), "");
  EXPECT_EQ(read_capsule_statistics(folder_, &about, &trace).why(), "holds no statistics of its operations");
  fs::remove_all(folder_);
  tape.statistics = write_statistics(sample_trace(), false);
  EXPECT_EQ(capsule_bytes(tape), capsule_bytes(whole_tape()) + tape.statistics.size());
  ASSERT_EQ(write_capsule(folder_, tape, {{"step", 3}}, {}).why(), "");
  EXPECT_EQ(content("statistics.bin"), tape.statistics);
  ASSERT_EQ(read_capsule_statistics(folder_, &about, &trace).why(), "");
  EXPECT_EQ(about["step"], 3);
  EXPECT_EQ(trace.ops.size(), 3u);
  std::string changed = tape.statistics;
  changed[50] ^= 1;
  put("statistics.bin", changed);
  EXPECT_EQ(read_capsule_statistics(folder_, &about, &trace).why(), "statistics.bin is damaged: its checksum differs");
  EXPECT_EQ(why(), "") << "a replay does not read them";
}

TEST_F(Capsule, StatisticsAreRedactedAndWithinTheLimit) {
  Tape tape = whole_tape();
  tape.statistics = write_statistics(sample_trace(), false);
  ASSERT_EQ(write_capsule(folder_, tape, nlohmann::json::object(), {.redact = true}).why(), "");
  EXPECT_EQ(content("statistics.bin"), write_statistics(sample_trace(), true));
  nlohmann::json about;
  record::Trace trace;
  for (const bool redact : {false, true}) {
    fs::remove_all(folder_);
    const std::uint64_t most = redact ? tape.statistics.size() - 1 : capsule_bytes(tape) - 1;
    ASSERT_EQ(write_capsule(folder_, tape, nlohmann::json::object(), {.max_bytes = most, .redact = redact}).why(), "");
    EXPECT_EQ(read_capsule_statistics(folder_, &about, &trace).why(), "holds no statistics of its operations");
  }
}

TEST_F(Capsule, NamesThatAreTheSameStayApart) {
  Tape tape = whole_tape();
  tape.storages[3].kind = tape.storages[0].kind;
  tape.storages[3].name = tape.storages[0].name;
  ASSERT_EQ(write_capsule(folder_, tape, nlohmann::json::object(), {}).why(), "");
  nlohmann::json about;
  ASSERT_EQ(read_capsule(folder_, &about, &tape).why(), "");
  EXPECT_EQ(tape.storages[3].bytes, "87654321");
}

TEST_F(Capsule, NoneIsLeftWhereItCannotBeWritten) {
  EXPECT_EQ(write_capsule(folder_, whole_tape(), {}, {.max_bytes = 10}).why(), "would take 1 MB");
  EXPECT_NE(
      write_capsule((root_ / "no" / "such" / "folder").string(), whole_tape(), nlohmann::json::object(), {}).why(), "");
  EXPECT_EQ(entries(), 0u);
  ASSERT_EQ(write_capsule(folder_, whole_tape(), {{"step", 1}}, {}).why(), "");
  EXPECT_EQ(write_capsule(folder_, whole_tape(), {{"step", 2}}, {}).why(), "is there already");
  EXPECT_EQ(entries(), 1u);
  EXPECT_EQ(nlohmann::json::parse(content("capsule.json"))["step"], 1);
}

TEST_F(Capsule, ADamagedOneIsReported) {
  ASSERT_EQ(write_capsule(folder_, whole_tape(), nlohmann::json::object(), {}).why(), "");
  for (const char* name : {"tape.bin", "tensors.safetensors"}) {
    const std::string sound = content(name);
    for (const std::size_t at : {std::size_t{0}, sound.size() / 2, sound.size() - 1}) {
      std::string changed = sound;
      changed[at] ^= 4;
      put(name, changed);
      EXPECT_EQ(why(), std::string(name) + " is damaged: its checksum differs");
    }
    put(name, sound.substr(1));
    EXPECT_NE(why(), "");
    fs::remove(fs::path(folder_) / name);
    EXPECT_NE(why(), "");
    put(name, sound);
    EXPECT_EQ(why(), "");
  }
  const std::string about = content("capsule.json");
  for (const char* wrong :
       {"", "{", "[]", "{}", R"({"schema": "1"})", R"({"schema": 2, "files": {}})", R"({"schema": 1})",
        R"({"schema": 1, "files": {"tape.bin": 1}})", R"({"schema": 1, "files": {"tape.bin": {"bytes": "x"}}})",
        R"({"schema": 1, "files": {"tape.bin": {"bytes": 9, "checksum": []}}})"}) {
    put("capsule.json", wrong);
    EXPECT_NE(why(), "") << wrong;
  }
  put("capsule.json", std::string(100'000, '['));
  EXPECT_NE(why(), "");
  // A tape that asks for what the other file does not hold.
  nlohmann::json lacking = nlohmann::json::parse(about);
  lacking["files"].erase("tensors.safetensors");
  put("capsule.json", lacking.dump());
  EXPECT_EQ(why(), "is no sound capsule: capsule.json is damaged: its checksum differs");
  put("capsule.json", with_own_checksum(lacking));
  nlohmann::json ignored;
  Tape tape;
  ASSERT_TRUE(read_capsule(folder_, &ignored, &tape).ok());
  EXPECT_TRUE(tape.storages[0].bytes.empty());
}

TEST_F(Capsule, EveryChangedBitOfTheDescriptionIsReported) {
  ASSERT_EQ(write_capsule(folder_, whole_tape(), {{"step", 1}, {"user", "somebody"}}, {}).why(), "");
  const std::string about = content("capsule.json");
  EXPECT_EQ(nlohmann::json::parse(about)["has_checksum"], true);
  for (std::size_t bit = 0; bit < 8 * about.size(); ++bit) {
    std::string changed = about;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << (bit % 8)));
    put("capsule.json", changed);
    EXPECT_NE(why(), "") << "bit " << bit;
  }
  put("capsule.json", about + " ");
  EXPECT_NE(why(), "");
  nlohmann::json earlier = nlohmann::json::parse(about);  // of a version without
  earlier.erase("checksum");
  earlier.erase("has_checksum");
  put("capsule.json", earlier.dump());
  EXPECT_EQ(why(), "");
}

// What the program held beyond what the step reads; what the tape holds already is not written twice.
TEST_F(Capsule, TheStartOfTheStep) {
  const Tape tape = whole_tape();
  const std::string on_tape = tape.storages[0].kind + "." + tape.storages[0].name;
  const std::string same_size = std::string(tape.storages[0].bytes.size(), '?');
  const std::vector<NamedTensor> start = {{on_tape, "U8", {static_cast<std::int64_t>(same_size.size())}, same_size},
                                          {"state.weight.exp_avg", "F32", {2}, "12345678"},
                                          {"state.weight.exp_avg", "F32", {2}, "87654321"}};  // a name comes once
  ASSERT_EQ(write_capsule(folder_, tape, {{"start", {{"x", 1}}}}, {}, start).why(), "");
  nlohmann::json about;
  Tape read;
  TensorBytes bytes;
  ASSERT_EQ(read_capsule(folder_, &about, &read, &bytes).why(), "");
  EXPECT_EQ(about["start"]["x"], 1);
  EXPECT_EQ(bytes[on_tape], tape.storages[0].bytes);
  EXPECT_EQ(bytes["state.weight.exp_avg"], "12345678");
  EXPECT_EQ(content("start.safetensors").find(same_size), std::string::npos);
  // A replay needs nothing of it; who wants it is reported of damage.
  put("start.safetensors", "x");
  EXPECT_EQ(read_capsule(folder_, &about, &read).why(), "");
  EXPECT_NE(read_capsule(folder_, &about, &read, &bytes).why(), "");
}

TEST_F(Capsule, TooLargeStartIsOmitted) {
  const std::string large(1 << 20, 'x');
  const std::vector<NamedTensor> start = {{"state.weight.exp_avg", "U8", {1 << 20}, large}};
  for (const bool redact : {false, true}) {
    fs::remove_all(folder_);
    ASSERT_EQ(
        write_capsule(folder_, whole_tape(), {{"start", 1}}, {.max_bytes = 1 << 20, .redact = redact}, start).why(),
        "");
    EXPECT_FALSE(fs::exists(fs::path(folder_) / "start.safetensors"));
    EXPECT_EQ(content("capsule.json").find("\"start\""), std::string::npos);
  }
}

TEST_F(Capsule, RedactedOnesHoldNoValue) {
  Tape tape = whole_tape();
  const float secret[4] = {1.5f, -2.25f, 0, 42.125f};
  tape.storages[0].bytes.assign(reinterpret_cast<const char*>(secret), sizeof secret);
  tape.entries[3].args[1].real = 1234.5678;
  ASSERT_EQ(write_capsule(folder_, tape, nlohmann::json::object(), {.max_bytes = 1, .redact = true}).why(), "");
  EXPECT_FALSE(fs::exists(fs::path(folder_) / "tensors.safetensors"));
  const std::string bytes = content("tape.bin");
  EXPECT_EQ(bytes.find(std::string(reinterpret_cast<const char*>(secret), 8)), std::string::npos);
  EXPECT_EQ(bytes.find("abcd"), std::string::npos);
  EXPECT_EQ(bytes.find("state"), std::string::npos);
  nlohmann::json about;
  Tape read;
  ASSERT_EQ(read_capsule(folder_, &about, &read).why(), "");
  EXPECT_EQ(read.entries[3].args[1].real, 0);
  EXPECT_EQ(read.operators[0].name, "aten::mul");
  EXPECT_EQ(about["redacted"], true);
  EXPECT_FALSE(about["tensors"]["weight"].contains("max"));  // of three values
  EXPECT_EQ(about["tensors"]["weight"]["zero"], 1);
}

}  // namespace
}  // namespace finitude::capture
