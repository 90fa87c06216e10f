// Every kernel of every instruction set this machine has, against reference_scan.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "sense/scan_test_util.h"

namespace finitude::sense {
namespace {

class EveryIsa : public ::testing::TestWithParam<DType> {
 protected:
  const DType dtype_ = GetParam();
  const BitFormat format_ = bit_format(dtype_);
  const std::size_t element_ = element_size(dtype_);
  const std::size_t reals_per_ = static_cast<std::size_t>(info(dtype_).reals_per_element);
  std::mt19937_64 random_{42};

  void expect_all_agree(const unsigned char* data, std::size_t numel) {
    const Health expected = reference_scan(data, numel, dtype_);
    for (const Kernels* with : available_kernels()) {
      ASSERT_TRUE(same(full_scan_with(*with, data, numel, dtype_), expected, dtype_))
          << with->isa << " numel " << numel;
      ASSERT_TRUE(same(quick_scan_with(*with, data, numel, dtype_), expected, dtype_))
          << with->isa << " numel " << numel;
    }
  }
};

TEST_P(EveryIsa, LengthsAndMisalignmentsUpToSixteenVectors) {
  constexpr std::size_t kVector = 64;
  const std::size_t most = 16 * kVector / element_ + 1;
  std::vector<unsigned char> memory(most * element_ + 2 * kVector);
  for (const std::size_t shift : {0u, 1u, 2u, 4u, 7u, 29u, 63u}) {
    for (const Mix mix : {Mix::kOrdinary, Mix::kFinite, Mix::kAll}) {
      fill(memory.data() + shift, most * reals_per_, format_, mix, random_);
      for (std::size_t numel = 0; numel <= most; ++numel) {
        ASSERT_NO_FATAL_FAILURE(expect_all_agree(memory.data() + shift, numel)) << "shift " << shift;
      }
    }
  }
}

TEST_P(EveryIsa, SeveralBlocks) {
  const std::size_t most = 4 * kBlock + 77;
  std::vector<unsigned char> memory(most * element_ + 3);
  for (const std::size_t numel : {kBlock - 1, kBlock, kBlock + 1, 2 * kBlock + 17, most}) {
    for (const Mix mix : {Mix::kOrdinary, Mix::kFinite, Mix::kAll}) {
      fill(memory.data() + 3, numel * reals_per_, format_, mix, random_);
      ASSERT_NO_FATAL_FAILURE(expect_all_agree(memory.data() + 3, numel));
    }
  }
}

// A block is looked at according to what the one before it held: every change of kind must be right.
TEST_P(EveryIsa, BlocksOfDifferentKinds) {
  constexpr Mix kKinds[] = {Mix::kOrdinary, Mix::kFinite, Mix::kAll};
  const std::size_t numel = 4 * kBlock / reals_per_;
  std::vector<unsigned char> data(numel * element_);
  for (int round = 0; round < 12; ++round) {
    for (std::size_t block = 0; block < 4; ++block) {
      fill(data.data() + block * kBlock * info(dtype_).size_bytes, kBlock, format_, kKinds[random_() % 3], random_);
    }
    ASSERT_NO_FATAL_FAILURE(expect_all_agree(data.data(), numel));
  }
}

// After some blocks without new extremes only magnitudes are looked at: whatever then comes must still be
// seen.
TEST_P(EveryIsa, OneExtremeValueAfterManyCalmBlocks) {
  const std::size_t blocks = 9, reals = blocks * kBlock + 3 * reals_per_, size = info(dtype_).size_bytes;
  std::vector<unsigned char> data(reals * size);
  fill(data.data(), kBlock, format_, Mix::kOrdinary, random_);
  for (std::size_t at = kBlock * size; at < data.size(); at += kBlock * size) {
    std::memcpy(data.data() + at, data.data(), std::min(kBlock * size, data.size() - at));
  }
  const std::vector<unsigned char> calm = data;
  ASSERT_NO_FATAL_FAILURE(expect_all_agree(data.data(), reals / reals_per_));
  std::vector<std::uint64_t> codes = finite_codes(format_);
  for (const std::uint64_t bad : bad_codes(format_)) codes.push_back(bad);
  for (const std::uint64_t code : codes) {
    const std::size_t at = (6 + random_() % 2) * kBlock + random_() % kBlock;
    put(data.data(), at, code, format_);
    ASSERT_NO_FATAL_FAILURE(expect_all_agree(data.data(), reals / reals_per_)) << "at " << at << " code " << code;
    std::memcpy(data.data() + at * size, calm.data() + at * size, size);
  }
}

// All of one sign: the other end of the range is the least magnitude.
TEST_P(EveryIsa, ManyBlocksOfOneSign) {
  const std::size_t reals = 7 * kBlock;
  std::vector<unsigned char> data(reals * info(dtype_).size_bytes);
  for (const bool negative : {false, true}) {
    fill(data.data(), reals, format_, Mix::kOrdinary, random_);
    for (std::size_t i = 1; i <= reals; ++i) {
      unsigned char& top = data[i * info(dtype_).size_bytes - 1];
      top = static_cast<unsigned char>(negative ? top | 0x80 : top & 0x7f);
    }
    ASSERT_NO_FATAL_FAILURE(expect_all_agree(data.data(), reals / reals_per_));
  }
}

TEST_P(EveryIsa, OneBadElementIsSeenAtEveryPosition) {
  for (const std::size_t numel : {1u, 2u, 7u, 16u, 17u, 31u, 64u, 130u, 259u}) {
    std::vector<unsigned char> clean(numel * element_ + 1);
    fill(clean.data() + 1, numel * reals_per_, format_, Mix::kFinite, random_);
    for (std::size_t at = 0; at < numel * reals_per_; ++at) {
      for (const std::uint64_t bad : bad_codes(format_)) {
        std::vector<unsigned char> data = clean;
        put(data.data() + 1, at, bad, format_);
        ASSERT_NO_FATAL_FAILURE(expect_all_agree(data.data() + 1, numel)) << "at " << at << " code " << bad;
        ASSERT_EQ(first_non_finite(data.data() + 1, numel, dtype_), at / reals_per_);
        for (const Kernels* with : available_kernels()) {
          ASSERT_TRUE(quick_scan_with(*with, data.data() + 1, numel, dtype_).bad) << with->isa;
        }
      }
    }
    EXPECT_EQ(first_non_finite(clean.data() + 1, numel, dtype_), numel);
  }
}

TEST_P(EveryIsa, OneBadElementInABlock) {
  const std::size_t numel = 3 * kBlock + 5;
  std::vector<unsigned char> data(numel * element_);
  fill(data.data(), numel * reals_per_, format_, Mix::kFinite, random_);
  const std::uint64_t before = finite_codes(format_).front();
  for (const std::size_t at : {std::size_t{0}, kBlock - 1, kBlock, 2 * kBlock + 13, 3 * kBlock, numel - 1}) {
    for (const std::uint64_t bad : bad_codes(format_)) {
      put(data.data(), at * reals_per_, bad, format_);
      ASSERT_NO_FATAL_FAILURE(expect_all_agree(data.data(), numel)) << "at " << at;
      ASSERT_EQ(first_non_finite(data.data(), numel, dtype_), at);
      put(data.data(), at * reals_per_, before, format_);
    }
  }
}

TEST_P(EveryIsa, UniformTensorsOfEverySpecialValue) {
  std::vector<std::uint64_t> codes = finite_codes(format_);
  for (const std::uint64_t bad : bad_codes(format_)) codes.push_back(bad);
  for (const std::uint64_t code : codes) {
    for (const std::size_t numel : {1u, 5u, 40u, 300u}) {
      std::vector<unsigned char> data(numel * element_);
      for (std::size_t i = 0; i < numel * reals_per_; ++i) put(data.data(), i, code, format_);
      ASSERT_NO_FATAL_FAILURE(expect_all_agree(data.data(), numel)) << "code " << code;
    }
  }
}

// Each value that is special to the format among ordinary ones, at each position of up to sixteen vectors and
// a rest.
TEST_P(EveryIsa, EverySpecialValueAtEveryPosition) {
  std::vector<std::uint64_t> codes = finite_codes(format_);
  for (const std::uint64_t bad : bad_codes(format_)) codes.push_back(bad);
  const std::size_t reals = 16 * 64 / info(dtype_).size_bytes + 3 * reals_per_;
  std::vector<unsigned char> data(reals * info(dtype_).size_bytes + 1);
  fill(data.data() + 1, reals, format_, Mix::kOrdinary, random_);
  const std::vector<unsigned char> ordinary = data;
  const std::size_t size = info(dtype_).size_bytes;
  for (std::size_t at = 0; at < reals; ++at) {
    for (const std::uint64_t code : codes) {
      put(data.data() + 1, at, code, format_);
      ASSERT_NO_FATAL_FAILURE(expect_all_agree(data.data() + 1, reals / reals_per_)) << "at " << at << " code " << code;
    }
    std::memcpy(data.data() + 1 + at * size, ordinary.data() + 1 + at * size, size);
  }
}

TEST_P(EveryIsa, ReadsNothingBesideTheData) {
  const FencedMemory fenced(3 * kBlock * element_);
  const auto reals_in_all = static_cast<std::size_t>(fenced.end() - fenced.begin()) / element_ * reals_per_;
  fill(fenced.begin(), reals_in_all, format_, Mix::kFinite, random_);
  for (const std::size_t numel : {std::size_t{1}, std::size_t{3}, std::size_t{9}, std::size_t{33}, std::size_t{70},
                                  std::size_t{200}, kBlock + 1}) {
    ASSERT_NO_FATAL_FAILURE(expect_all_agree(fenced.begin(), numel));
    ASSERT_NO_FATAL_FAILURE(expect_all_agree(fenced.end() - numel * element_, numel));
  }
  expect_all_agree(nullptr, 0);
}

// Long memory is asked for ahead, and near its end no longer: no step is skipped or taken twice too far
// where the one loop hands over to the other. Any alignment to the pages, with nothing behind the end.
TEST_P(EveryIsa, LongMemoryWhereAskingAheadEnds) {
  const std::size_t size = info(dtype_).size_bytes, page = 4096;
  const FencedMemory fenced(300 << 10);
  const auto capacity = static_cast<std::size_t>(fenced.end() - fenced.begin());
  fill(fenced.begin(), capacity / size, format_, Mix::kOrdinary, random_);
  const std::uint64_t bad = bad_codes(format_).front(), largest = format_.first_non_finite() - 1;
  for (const std::size_t bytes : {capacity, capacity - 48, capacity - 16 * 131, std::size_t{256} << 10}) {
    unsigned char* data = fenced.end() - bytes;
    const std::size_t numel = bytes / element_, reals = numel * reals_per_;
    std::vector<std::size_t> positions{0, reals / 2, reals - 1};
    for (std::size_t from_end = 0; from_end <= 6 * page; from_end += page / 8) {
      positions.push_back(reals - from_end / size - 1);
      positions.push_back(reals - from_end / size - 2);
    }
    for (const std::size_t at : positions) {
      const std::vector<unsigned char> before(data + at * size, data + (at + 1) * size);
      for (const std::uint64_t code : {bad, largest}) {
        put(data, at, code, format_);
        for (const Kernels* with : available_kernels()) {
          const Quick quick = quick_scan_with(*with, data, numel, dtype_);
          ASSERT_EQ(quick.bad, code == bad) << with->isa << " bytes " << bytes << " at " << at;
          ASSERT_EQ(quick.absmax, code == bad ? 0 : decode(largest, format_)) << with->isa << " at " << at;
        }
      }
      std::memcpy(data + at * size, before.data(), size);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, EveryIsa, ::testing::ValuesIn(kAllDTypes),
                         [](const auto& param) { return std::string(sense::info(param.param).name); });

TEST(Isa, ScalarAlwaysExistsEveryIsaHasKernels) {
  std::set<QuickKernel> quick;
  std::set<FullKernel> full;
  std::set<std::string> names;
  for (const Kernels* table : available_kernels()) {
    quick.insert(table->quick32);
    full.insert(table->full_float32);
    names.insert(table->isa);
  }
  EXPECT_EQ(quick.size(), available_kernels().size());
  EXPECT_EQ(full.size(), available_kernels().size());
  EXPECT_EQ(names.size(), available_kernels().size());
  EXPECT_EQ(names.count("scalar"), 1u);
}

// A machine that cannot run one of them has not tested it: that must be seen.
TEST(Isa, ThisMachineRunsEveryCompiledOne) {
  std::string missing;
  for (const char* name : compiled_isas()) {
    if (std::string(choose_kernels(name).isa) != name) missing += std::string(" ") + name;
  }
  if (!missing.empty()) GTEST_SKIP() << "compiled, but this machine cannot run it:" << missing;
  EXPECT_EQ(compiled_isas().size(), available_kernels().size());
}

TEST(Isa, WhatTheEnvironmentNamesIsInUse) {
  const char* forced = std::getenv("FINITUDE_FORCE_ISA");
  EXPECT_EQ(&kernels(), &choose_kernels(forced == nullptr ? "" : forced));
  EXPECT_EQ(chosen_isa(), kernels().isa);
  std::printf("kernels in use: %s\n", kernels().isa);
}

TEST(Isa, ChoosesByNameBestForUnknownNames) {
  for (const Kernels* table : available_kernels()) EXPECT_EQ(&choose_kernels(table->isa), table);
  EXPECT_EQ(&choose_kernels("SCALAR"), &scalar_kernels());
  EXPECT_EQ(&choose_kernels(""), available_kernels().front());
  EXPECT_EQ(&choose_kernels("no such thing"), available_kernels().front());
}

// In a fresh process, because the choice is made once.
TEST(IsaDeathTest, EnvironmentDecidesWhichKernelsRun) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [](const char* forced, const Kernels& expected) {
    setenv("FINITUDE_FORCE_ISA", forced, 1);
    EXPECT_EXIT(
        {
          const bool right = chosen_isa() == expected.isa && &kernels() == &expected;
          std::fprintf(stderr, "isa %s", std::string(chosen_isa()).c_str());
          std::exit(right ? 0 : 1);
        },
        ::testing::ExitedWithCode(0), std::string("isa ") + expected.isa)
        << forced;
    unsetenv("FINITUDE_FORCE_ISA");
  };
  for (const Kernels* table : available_kernels()) run(table->isa, *table);
  run("no such thing", *available_kernels().front());
}

}  // namespace
}  // namespace finitude::sense
