// A scan by several threads says what the scan by one says, the caller that took which piece.
#include <gtest/gtest.h>

#include <thread>

#include "sense/scan_test_util.h"

namespace finitude::sense {
namespace {

template <int kThreads>
void run_on(Threads::Work work, void* context) noexcept {
  std::vector<std::thread> others;
  for (int i = 1; i < kThreads; ++i) others.emplace_back(work, context);
  work(context);
  for (std::thread& other : others) other.join();
}

// The calling thread comes last, when nothing is left, or does not work at all.
void run_elsewhere(Threads::Work work, void* context) noexcept { std::thread(work, context).join(); }
void run_nowhere(Threads::Work, void*) noexcept {}

constexpr Threads kLent[] = {{run_on<1>}, {run_on<2>}, {run_on<5>}, {run_elsewhere}, {run_nowhere}, {nullptr}};

class SharedScan : public ::testing::TestWithParam<DType> {
 protected:
  const DType dtype_ = GetParam();
  const BitFormat format_ = bit_format(dtype_);
  const std::size_t element_ = element_size(dtype_);
  const std::size_t reals_per_ = static_cast<std::size_t>(info(dtype_).reals_per_element);
  const std::size_t least_ = kSharedScanBytes / element_;
};

TEST_P(SharedScan, ReportsWhatOneThreadReports) {
  const std::size_t most = least_ + least_ / 5 + 77;
  std::vector<unsigned char> memory(most * element_ + 1);
  std::mt19937_64 random(17);
  for (const Mix mix : {Mix::kFinite, Mix::kAll}) {
    fill(memory.data() + 1, most * reals_per_, format_, mix, random);
    for (const std::size_t numel : {least_ - 1, least_, most}) {
      const Health expected = full_scan(memory.data() + 1, numel, dtype_);
      for (const Threads& lent : kLent) {
        EXPECT_TRUE(same(full_scan(memory.data() + 1, numel, dtype_, lent), expected, dtype_)) << numel;
        EXPECT_TRUE(same(quick_scan(memory.data() + 1, numel, dtype_, lent), expected, dtype_)) << numel;
      }
    }
  }
}

// One bad element, or the one that is largest, in any piece and at both ends.
TEST_P(SharedScan, SeesEveryPiece) {
  const std::size_t numel = least_ + 7;
  std::vector<unsigned char> memory(numel * element_);
  std::mt19937_64 random(18);
  fill(memory.data(), numel * reals_per_, format_, Mix::kOrdinary, random);
  const std::vector<unsigned char> ordinary = memory;
  const std::uint64_t bad = bad_codes(format_).front(), largest = format_.first_non_finite() - 1;
  constexpr std::size_t kPositions = 37;
  for (std::size_t i = 0; i <= kPositions; ++i) {
    const std::size_t at = i * (numel - 1) / kPositions;
    put(memory.data(), at * reals_per_, bad, format_);
    EXPECT_EQ(full_scan(memory.data(), numel, dtype_, kLent[1]).non_finite(), 1u) << at;
    EXPECT_TRUE(quick_scan(memory.data(), numel, dtype_, kLent[1]).bad) << at;
    put(memory.data(), at * reals_per_, largest, format_);
    EXPECT_EQ(full_scan(memory.data(), numel, dtype_, kLent[1]).absmax, info(dtype_).max_finite) << at;
    EXPECT_EQ(quick_scan(memory.data(), numel, dtype_, kLent[1]).absmax, info(dtype_).max_finite) << at;
    std::memcpy(memory.data() + at * element_, ordinary.data() + at * element_, element_);
  }
}

TEST_P(SharedScan, TheNumberOfThreadsChangesNoBit) {
  const std::size_t numel = least_ + 99;
  std::vector<unsigned char> memory(numel * element_);
  std::mt19937_64 random(19);
  fill(memory.data(), numel * reals_per_, format_, Mix::kOrdinary, random);
  const double expected = full_scan(memory.data(), numel, dtype_, kLent[0]).sum_sq;
  for (const Threads& lent : {kLent[1], kLent[2], kLent[3], kLent[4]}) {
    EXPECT_EQ(full_scan(memory.data(), numel, dtype_, lent).sum_sq, expected);
  }
}

// One of each size: what is shared knows nothing else of a dtype.
INSTANTIATE_TEST_SUITE_P(DTypes, SharedScan,
                         ::testing::Values(DType::kComplex128, DType::kFloat64, DType::kFloat32, DType::kBFloat16,
                                           DType::kFloat8E4M3FNUZ),
                         [](const auto& param) { return std::string(sense::info(param.param).name); });

// Dense memory in another order than row-major, as a channels-last gradient has it.
TEST(SharedScanOther, DenseStridesAreShared) {
  const std::int64_t sizes[] = {64, 700, 33}, strides[] = {1, 64, 64 * 700};
  std::vector<unsigned char> memory(64 * 700 * 33 * 4);
  std::mt19937_64 random(20);
  fill(memory.data(), memory.size() / 4, kFloat32Format, Mix::kAll, random);
  const Health expected = reference_scan(memory.data(), memory.size() / 4, DType::kFloat32);
  EXPECT_TRUE(same(full_scan_strided(memory.data(), sizes, strides, 3, DType::kFloat32, kLent[2]), expected));
  EXPECT_TRUE(same(quick_scan_strided(memory.data(), sizes, strides, 3, DType::kFloat32, kLent[2]), expected));
}

TEST(SharedScanOther, FormatsWithoutNanCountNothing) {
  const std::vector<unsigned char> memory(kSharedScanBytes * 2, 0xff);
  EXPECT_EQ(full_scan(memory.data(), memory.size(), DType::kOther, kLent[1]).numel, 0u);
  EXPECT_FALSE(quick_scan(memory.data(), memory.size(), DType::kOther, kLent[1]).bad);
}

}  // namespace
}  // namespace finitude::sense
