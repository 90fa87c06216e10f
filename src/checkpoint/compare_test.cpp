#include "checkpoint/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "capture/safetensors.h"
#include "checkpoint/testing.h"

namespace finitude::checkpoint {
namespace {

namespace fs = std::filesystem;

class CheckpointCompare : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
              (std::string("finitude-compare-") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  Checkpoint read(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    const Result<Checkpoint> checkpoint = read_checkpoint((folder_ / name).string());
    EXPECT_EQ(checkpoint.why(), "");
    return checkpoint.ok() ? *checkpoint : Checkpoint();
  }
  // Of one tensor, w.
  Checkpoint of(const std::string& name, const std::string& dtype, const std::string& data) {
    const auto size = static_cast<std::int64_t>(data.size() / capture::safetensors_item_bytes(dtype));
    return read(name + ".safetensors", capture::safetensors_header({{"w", dtype, {size}, data}}) + data);
  }

  fs::path folder_;
};

TEST_F(CheckpointCompare, DistanceOfValues) {
  const float kNan = std::numeric_limits<float>::quiet_NaN();
  const Checkpoint a = of("a", "F32", bytes_of({1, 2, kNan, 0.0f, kNan}));
  const Checkpoint b = of("b", "F32", bytes_of({1, std::nextafter(2.0f, 3.0f), kNan, -0.0f, 1}));
  const Compared compared = compare(a, b);
  ASSERT_EQ(compared.differences.size(), 1u);
  const Distance& distance = compared.differences[0].distance;
  EXPECT_EQ(distance.elements, 2u);
  EXPECT_EQ(distance.non_finite, 1u);
  EXPECT_EQ(distance.first, 1u);
  EXPECT_EQ(distance.ulps, 1u);
  EXPECT_DOUBLE_EQ(distance.absolute, std::nextafter(2.0f, 3.0f) - 2.0);
  EXPECT_EQ(compare(a, a).differences.size(), 0u);
}

TEST_F(CheckpointCompare, LargeIntegersAreExact) {
  const auto number = [](std::int64_t value) { return little(static_cast<std::uint64_t>(value), 8); };
  const std::int64_t large = (std::int64_t{1} << 60) + 1;
  const Compared compared =
      compare(of("a", "I64", number(-3) + number(large)), of("b", "I64", number(-3) + number(large + 1)));
  ASSERT_EQ(compared.differences.size(), 1u);
  EXPECT_EQ(compared.differences[0].distance.first, 1u);
  EXPECT_FALSE(compared.differences[0].distance.ulps);
}

TEST_F(CheckpointCompare, LayoutsDoNotMatter) {
  const Checkpoint rows =
      read("a.pt", torch_file(pickled_dict({{"w", pickled_tensor("FloatStorage", "0", 6, 0, {2, 3}, {3, 1})}}),
                              {{1, 2, 3, 4, 5, 6}}));
  const Checkpoint columns =
      read("b.pt", torch_file(pickled_dict({{"w", pickled_tensor("FloatStorage", "0", 7, 1, {2, 3}, {1, 2})}}),
                              {{9, 1, 4, 2, 5, 3, 6}}));
  EXPECT_EQ(compare(rows, columns).differences.size(), 0u);
  EXPECT_EQ(compare(rows, columns).tensors, 1u);
}

TEST_F(CheckpointCompare, NamesShapesAndDtypes) {
  const std::string w = bytes_of({1, 2}), half("\x00\x3c\x00\x40", 4);
  const auto kinds = [](const Compared& compared) {
    std::vector<std::pair<std::string, Difference::Kind>> found;
    for (const Difference& difference : compared.differences) found.emplace_back(difference.name, difference.kind);
    return found;
  };
  using Kind = Difference::Kind;
  const Checkpoint a = read(
      "a.safetensors",
      capture::safetensors_header({{"old", "F32", {2}, w}, {"s", "F32", {2}, w}, {"t", "F32", {2}, w}}) + w + w + w);
  const Checkpoint b =
      read("b.safetensors",
           capture::safetensors_header({{"s", "F32", {1, 2}, w}, {"t", "F16", {2}, half}, {"new", "F32", {2}, w}}) + w +
               half + w);
  const std::vector<std::pair<std::string, Kind>> expected = {
      {"old", Kind::kOnlyA}, {"s", Kind::kShape}, {"t", Kind::kDType}, {"new", Kind::kOnlyB}};
  const Compared compared = compare(a, b);
  EXPECT_EQ(kinds(compared), expected);
  EXPECT_FALSE(compared.differences[2].distance.first);  // the values are the same
}

}  // namespace
}  // namespace finitude::checkpoint
