// Any layout against a contiguous copy of the same elements.
#include <gtest/gtest.h>

#include "sense/scan_test_util.h"

namespace finitude::sense {
namespace {

struct Shape {
  std::vector<std::int64_t> sizes, strides;
  std::int64_t first = 0;  // element of index 0
};

std::vector<unsigned char> contiguous_copy(const unsigned char* data, const Shape& shape, std::size_t element) {
  std::vector<unsigned char> copy;
  std::vector<std::int64_t> index(shape.sizes.size(), 0);
  for (const std::int64_t size : shape.sizes) {
    if (size == 0) return copy;
  }
  for (;;) {
    std::int64_t at = shape.first;
    for (std::size_t d = 0; d < index.size(); ++d) at += index[d] * shape.strides[d];
    const unsigned char* from = data + at * static_cast<std::int64_t>(element);
    copy.insert(copy.end(), from, from + element);
    std::size_t d = index.size();
    for (; d > 0; --d) {
      if (++index[d - 1] < shape.sizes[d - 1]) break;
      index[d - 1] = 0;
    }
    if (d == 0) return copy;
  }
}

class Strided : public ::testing::TestWithParam<DType> {
 protected:
  void expect_like_a_copy(const Shape& shape, std::int64_t elements_in_memory, Mix mix) {
    const DType dtype = GetParam();
    const std::size_t element = element_size(dtype);
    std::vector<unsigned char> memory(static_cast<std::size_t>(elements_in_memory) * element);
    std::mt19937_64 random(11);
    fill(memory.data(), memory.size() / info(dtype).size_bytes, bit_format(dtype), mix, random);
    const auto copy = contiguous_copy(memory.data(), shape, element);
    const Health expected = reference_scan(copy.data(), copy.size() / element, dtype);
    const unsigned char* first = memory.data() + shape.first * static_cast<std::int64_t>(element);
    const int ndim = static_cast<int>(shape.sizes.size());
    EXPECT_TRUE(same(full_scan_strided(first, shape.sizes.data(), shape.strides.data(), ndim, dtype), expected, dtype));
    EXPECT_TRUE(
        same(quick_scan_strided(first, shape.sizes.data(), shape.strides.data(), ndim, dtype), expected, dtype));
  }
};

TEST_P(Strided, LayoutsOfEveryKind) {
  const Shape shapes[] = {
      {{}, {}},  // 0-dim
      {{7}, {1}},
      {{5, 4}, {4, 1}},        // contiguous
      {{4, 5}, {1, 4}},        // transposed
      {{6, 3}, {10, 1}},       // rows of a wider matrix
      {{3, 2000}, {2500, 1}},  // long rows
      {{3, 2000}, {2500, 1}, 400},
      {{100, 90}, {180, 2}},             // every second column
      {{2000, 3}, {1, 2500}},            // long columns
      {{2, 3, 4, 5}, {60, 1, 15, 3}},    // channels last
      {{2, 3, 4, 5}, {200, 50, 11, 2}},  // nothing joins
      {{4, 1, 6}, {6, 999, 1}},          // stride of a size-1 dimension means nothing
      {{4, 3, 5}, {5, 0, 1}},            // expanded
      {{3, 4}, {0, 0}},                  // one element, expanded
      {{9, 4}, {1, 1}},                  // overlapping windows (unfold)
      {{50, 64}, {8, 1}},                // overlapping, long
      {{10}, {-1}, 9},                   // flipped
      {{3, 0, 4}, {4, 4, 1}},            // no elements
      {{1, 1, 1}, {0, 7, 1}},
      {{6000}, {3}},  // more than the buffer holds
  };
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(::testing::PrintToString(shape.sizes) + " by " + ::testing::PrintToString(shape.strides));
    expect_like_a_copy(shape, 20000, Mix::kFinite);
    expect_like_a_copy(shape, 20000, Mix::kAll);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, Strided, ::testing::ValuesIn(kAllDTypes),
                         [](const auto& param) { return std::string(sense::info(param.param).name); });

TEST(StridedScan, ElementsBetweenTheStridesAreNotSeen) {
  std::vector<float> memory(4000, std::bit_cast<float>(0x7fc00000u));
  for (std::size_t row = 0; row < 40; ++row) {
    for (std::size_t column = 0; column < 50; ++column) memory[row * 100 + column] = 1.0f;
  }
  const std::int64_t sizes[] = {40, 50}, strides[] = {100, 1};
  const Health health = full_scan_strided(memory.data(), sizes, strides, 2, DType::kFloat32);
  EXPECT_EQ(health.numel, 2000u);
  EXPECT_TRUE(health.ok());
  EXPECT_EQ(health.sum_sq, 2000.0);
  EXPECT_FALSE(quick_scan_strided(memory.data(), sizes, strides, 2, DType::kFloat32).bad);
}

TEST(StridedScan, AHugeExpandedTensorCostsOneElement) {
  const float value = 3.0f;
  const std::int64_t sizes[] = {1 << 20, 1 << 20}, strides[] = {0, 0};
  const Health health = full_scan_strided(&value, sizes, strides, 2, DType::kFloat32);
  EXPECT_EQ(health.numel, std::uint64_t{1} << 40);
  EXPECT_EQ(health.sum_sq, 9.0 * static_cast<double>(std::uint64_t{1} << 40));
  EXPECT_EQ(health.min, 3.0);
}

TEST(StridedScan, FormatsWithoutNanCountNothing) {
  const std::uint64_t data = ~0ull;
  const std::int64_t sizes[] = {8}, strides[] = {1};
  EXPECT_EQ(full_scan_strided(&data, sizes, strides, 1, DType::kOther).numel, 0u);
  EXPECT_FALSE(quick_scan_strided(&data, sizes, strides, 1, DType::kOther).bad);
}

}  // namespace
}  // namespace finitude::sense
