#include "checkpoint/scan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "capture/safetensors.h"
#include "checkpoint/testing.h"
#include "checkpoint/views.h"

namespace finitude::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

class CheckpointScan : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
              (std::string("finitude-scan-") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string put(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return (folder_ / name).string();
  }
  Result<Checkpoint> read(const std::string& bytes, const std::string& name = "x.pt") {
    return read_checkpoint(put(name, bytes));
  }
  // "name: nan +inf -inf first" of each bad tensor.
  std::vector<std::string> bad_in(const std::string& bytes, const std::string& name = "x.pt") {
    const Result<Checkpoint> checkpoint = read(bytes, name);
    EXPECT_EQ(checkpoint.why(), "");
    std::vector<std::string> lines;
    if (!checkpoint.ok()) return lines;
    const Scanned scanned = scan(*checkpoint, 2, nullptr);
    EXPECT_EQ(scanned.status.why(), "");
    for (std::size_t i = 0; i < scanned.tensors.size(); ++i) {
      const TensorHealth& health = scanned.tensors[i];
      if (!health.is_bad()) continue;
      std::string line = checkpoint->tensors[i].name + ":";
      for (const std::uint64_t count : {health.nan, health.pos_inf, health.neg_inf})
        line += " " + std::to_string(count);
      for (const auto& first : {health.first, health.first_negative}) {
        line += " at";
        if (!first) continue;
        for (const std::int64_t index : indices_of(*first, checkpoint->tensors[i].shape))
          line += " " + std::to_string(index);
      }
      lines.push_back(line);
    }
    return lines;
  }

  fs::path folder_;
};

TEST_F(CheckpointScan, EachBadTensorIsNamed) {
  const std::string value = pickled_dict({{"sound", pickled_tensor("FloatStorage", "0", 4, 0, {2, 2}, {2, 1})},
                                          {"bad", pickled_tensor("FloatStorage", "1", 4, 0, {2, 2}, {2, 1})}});
  EXPECT_EQ(bad_in(torch_file(value, {{1, 2, 3, 4}, {1, kInf, -kInf, kNan}})),
            std::vector<std::string>{"bad: 1 1 1 at 0 1 at"});
}

TEST_F(CheckpointScan, AViewHasOnlyItsOwnElements) {
  const std::vector<float> storage = {kNan, 1, kInf, 2, 3, -kInf};
  const std::string value = pickled_dict({{"column", pickled_tensor("FloatStorage", "0", 6, 1, {2}, {2})},
                                          {"transposed", pickled_tensor("FloatStorage", "0", 6, 0, {3, 2}, {1, 3})},
                                          {"tail", pickled_tensor("FloatStorage", "0", 6, 3, {2}, {1})}});
  EXPECT_EQ(bad_in(torch_file(value, {storage})), std::vector<std::string>{"transposed: 1 1 1 at 0 0 at"});
  // In row-major order the element of the second column comes first.
  const std::string later = pickled_dict({{"transposed", pickled_tensor("FloatStorage", "0", 6, 0, {3, 2}, {1, 3})}});
  EXPECT_EQ(bad_in(torch_file(later, {{1, kNan, 1, kInf, 1, 1}})),
            std::vector<std::string>{"transposed: 1 1 0 at 0 1 at"});
}

TEST_F(CheckpointScan, WindowsMeetAtTheRightElement) {
  const std::size_t count = 3 * kWindow / sizeof(float) + 5;
  std::vector<float> values(count, 1);
  const std::size_t edge = kWindow / sizeof(float);
  values[edge] = kNan;
  values[count - 1] = kInf;
  const auto size = static_cast<std::int64_t>(count);
  const std::string value = pickled_dict({{"w", pickled_tensor("FloatStorage", "0", size, 0, {size}, {1})}});
  EXPECT_EQ(bad_in(torch_file(value, {values})),
            std::vector<std::string>{"w: 1 1 0 at " + std::to_string(edge) + " at"});
}

TEST_F(CheckpointScan, SecondMomentsAreNotNegative) {
  const std::string moment = pickled_tensor("FloatStorage", "0", 4, 0, {2, 2}, {1, 2});
  const std::string value = pickled_dict({{"state", pickled_dict({{"exp_avg", moment}, {"exp_avg_sq", moment}})}});
  EXPECT_EQ(bad_in(torch_file(value, {{1, 2, -1e-9f, -0.0f}})),
            std::vector<std::string>{"state.exp_avg_sq: 0 0 0 at at 0 1"});
}

TEST_F(CheckpointScan, ABestScoreOfLightningBeginsAsInf) {
  const std::string first = pickled_tensor("FloatStorage", "0", 2, 0, {}, {}),
                    second = pickled_tensor("FloatStorage", "0", 2, 1, {}, {}),
                    weights = pickled_tensor("FloatStorage", "0", 2, 0, {2}, {1});
  const std::string value = pickled_dict(
      {{"callbacks", pickled_dict({{"best_score", first}, {"current_score", second}, {"average", weights}})}});
  EXPECT_EQ(bad_in(torch_file(value, {{kInf, kNan}})),
            (std::vector<std::string>{"callbacks.current_score: 1 0 0 at at", "callbacks.average: 1 1 0 at 0 at"}));
}

TEST_F(CheckpointScan, SafetensorsAreRead) {
  const std::string data = bytes_of({1, kNan, 3, 4});
  const std::string file = capture::safetensors_header({{"w", "F32", {2, 2}, data}}) + data;
  EXPECT_EQ(bad_in(file, "x.safetensors"), std::vector<std::string>{"w: 1 0 0 at 0 1 at"});
}

TEST_F(CheckpointScan, ParametersAreNamedByTheirGroups) {
  const std::string groups = "](" +
                             pickled_dict({{"params",
                                            "](K\x03"
                                            "e"},
                                           {"param_names", "](" + pickled_text("fc.weight") + "e"}}) +
                             "e";
  const std::string state =
      "}(K\x03" + pickled_dict({{"exp_avg", pickled_tensor("FloatStorage", "0", 1, 0, {1}, {1})}}) + "u";
  const auto checkpoint = read(torch_file(pickled_dict({{"state", state}, {"param_groups", groups}}), {{1}}));
  ASSERT_EQ(checkpoint.why(), "");
  ASSERT_EQ(checkpoint->tensors.size(), 1u);
  EXPECT_EQ(checkpoint->tensors[0].name, "state.3.exp_avg");
  EXPECT_EQ(checkpoint->tensors[0].parameter, "fc.weight");
}

TEST_F(CheckpointScan, FilesThatCannotBeReadSayWhy) {
  const std::string tensor = pickled_tensor("FloatStorage", "0", 4, 0, {2, 2}, {2, 1});
  const std::string sound = torch_file(tensor, {{1, 2, 3, 4}});
  EXPECT_EQ(read(sound).why(), "");
  EXPECT_EQ(read(sound.substr(0, sound.size() / 2)).code(), StatusCode::kCorrupt);
  EXPECT_EQ(read("").code(), StatusCode::kCorrupt);
  EXPECT_EQ(read(torch_file(tensor, {{1, 2, 3}})).code(), StatusCode::kCorrupt);
  EXPECT_EQ(read(torch_file(tensor, {})).code(), StatusCode::kCorrupt);
  EXPECT_EQ(read(torch_file(pickled_tensor("FloatStorage", "0", 4, 3, {2, 2}, {2, 1}), {{1, 2, 3, 4}})).code(),
            StatusCode::kCorrupt);
  EXPECT_EQ(read(zip_of({{"capsule.json", "{}"}})).code(), StatusCode::kCorrupt);
  EXPECT_EQ(read(std::string("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e.", 16)).code(),
            StatusCode::kUnsupported);
  EXPECT_EQ(read_checkpoint((folder_ / "none.pt").string()).code(), StatusCode::kUnreadable);
}

TEST_F(CheckpointScan, NestingWithoutEndIsRefused) {
  EXPECT_EQ(read(torch_file("]q\x01h\x01"
                            "a",
                            {}))
                .code(),
            StatusCode::kTooLarge);
  std::string wide = "]q" + std::string(1, '\x01');  // each list holds the one before ten times
  for (char i = 1; i < 12; ++i) {
    wide += "](";
    for (int n = 0; n < 10; ++n) wide += std::string("h") + i;
    wide += std::string("eq") + static_cast<char>(i + 1);
  }
  EXPECT_EQ(read(torch_file(wide, {})).code(), StatusCode::kTooLarge);
}

}  // namespace
}  // namespace finitude::checkpoint
