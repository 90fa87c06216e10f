// The host may flush subnormals, round elsewhere or trap: the answers stay, and its settings too.
#include "sense/fp_env.h"

#include <gtest/gtest.h>

#include "sense/scan_test_util.h"

#if defined(__x86_64__)
#include <xmmintrin.h>

namespace finitude::sense {
namespace {

constexpr unsigned kFlushBoth = 0x8040;  // FTZ | DAZ
constexpr unsigned kAllMasked = 0x1f80, kNothingMasked = 0x0000, kRoundUp = 0x4000;

class ControlRegister {
 public:
  explicit ControlRegister(unsigned value) : saved_(_mm_getcsr()) { _mm_setcsr(value); }
  ~ControlRegister() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
};

// Two scans of the same memory, by every instruction set: as usual, and with the host's register set so.
void expect_unchanged_by(unsigned host_setting) {
  std::mt19937_64 random(5);
  for (const DType dtype : kAllDTypes) {
    const BitFormat format = bit_format(dtype);
    const std::size_t numel = 203, reals = numel * static_cast<std::size_t>(info(dtype).reals_per_element);
    for (int content = 0; content < 3; ++content) {
      std::vector<unsigned char> data(numel * element_size(dtype));
      fill(data.data(), reals, format, content == 0 ? Mix::kFinite : Mix::kAll, random);
      if (content == 2) {  // nothing but subnormals, so that flushing any of them shows in every field
        for (std::size_t i = 0; i < reals; ++i) {
          put(data.data(), i, (1 + random() % format.mantissa_mask()) | (random() & format.sign_mask()),
              format);
        }
      }
      const Health expected = reference_scan(data.data(), numel, dtype);
      const std::int64_t sizes[] = {static_cast<std::int64_t>(numel)}, strides[] = {1};
      for (const Kernels* with : available_kernels()) {
        Health full, reference, strided, merged;
        Quick quick, quick_strided;
        unsigned after = 0;
        {
          const ControlRegister host(host_setting);
          full = full_scan_with(*with, data.data(), numel, dtype);
          quick = quick_scan_with(*with, data.data(), numel, dtype);
          reference = reference_scan(data.data(), numel, dtype);
          strided = full_scan_strided(data.data(), sizes, strides, 1, dtype);
          quick_strided = quick_scan_strided(data.data(), sizes, strides, 1, dtype);
          after = _mm_getcsr();
        }
        EXPECT_EQ(after & ~0x3fu, host_setting & ~0x3fu);
        EXPECT_TRUE(same(full, expected)) << with->isa << " " << info(dtype).name;
        EXPECT_TRUE(same(reference, expected)) << info(dtype).name;
        EXPECT_TRUE(same(strided, expected)) << info(dtype).name;
        EXPECT_TRUE(same(quick, expected)) << with->isa << " " << info(dtype).name;
        EXPECT_TRUE(same(quick_strided, expected)) << info(dtype).name;
      }
    }
  }
}

TEST(FpEnv, FlushingSubnormalsChangesNothing) { expect_unchanged_by(kAllMasked | kFlushBoth); }
TEST(FpEnv, AnotherRoundingModeChangesNothing) { expect_unchanged_by(kAllMasked | kRoundUp); }

// A conversion of a signalling NaN would raise SIGFPE here.
TEST(FpEnv, NothingTrapsInAHostThatTraps) {
  std::mt19937_64 random(6);
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    std::vector<unsigned char> data(1000 * element_size(dtype));
    fill(data.data(), 1000, bit_format(dtype), Mix::kAll, random);
    const Health expected = reference_scan(data.data(), 1000, dtype);
    for (const Kernels* with : available_kernels()) {
      Health full;
      Quick quick;
      unsigned after = 1;
      {
        const ControlRegister host(kNothingMasked);
        full = full_scan_with(*with, data.data(), 1000, dtype);
        quick = quick_scan_with(*with, data.data(), 1000, dtype);
        after = _mm_getcsr();
      }
      EXPECT_EQ(after, kNothingMasked) << "no exception flag may be left behind";
      EXPECT_TRUE(same(full, expected)) << with->isa;
      EXPECT_TRUE(same(quick, expected)) << with->isa;
    }
  }
}

TEST(FpEnv, MergeKeepsSubnormalExtremesWhereTheHostFlushes) {
  const double tiny[] = {5e-324}, none[] = {0.0};
  const Health a = reference_scan(tiny, 1, DType::kFloat64), b = reference_scan(none, 1, DType::kFloat64);
  Health both;
  {
    const ControlRegister host(kAllMasked | kFlushBoth);
    both = merge(b, a);
  }
  EXPECT_EQ(order_key(both.max), 1);
  EXPECT_EQ(order_key(both.absmax), 1);
  EXPECT_EQ(order_key(both.min), 0);
}

}  // namespace
}  // namespace finitude::sense
#endif  // x86-64
