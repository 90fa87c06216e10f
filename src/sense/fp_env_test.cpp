// The host may flush subnormals, round elsewhere or trap: the answers stay, and its settings too.
#include "sense/fp_env.h"

#include <gtest/gtest.h>

#include "sense/scan_test_util.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#if defined(__x86_64__) || defined(__aarch64__)
namespace finitude::sense {
namespace {

// The control register of this thread, and the flags that operations raise in it or beside it.
#if defined(__x86_64__)
using Word = unsigned;
constexpr Word kFlush = 0x1f80 | 0x8040, kRoundUp = 0x1f80 | 0x4000, kTrap = 0;
constexpr Word kFlags = 0x3f;
Word get_control() { return _mm_getcsr() & ~kFlags; }
void set_control(Word value) { _mm_setcsr(value); }
Word get_flags() { return _mm_getcsr() & kFlags; }
void clear_flags() { _mm_setcsr(_mm_getcsr() & ~kFlags); }
#else
using Word = std::uint64_t;
constexpr Word kFlush = Word{1} << 24 | Word{1} << 19, kRoundUp = Word{1} << 22, kTrap = 0x1f00;
Word get_control() {
  Word value;
  asm volatile("mrs %0, fpcr" : "=r"(value));
  return value;
}
void set_control(Word value) { asm volatile("msr fpcr, %0" : : "r"(value) : "memory"); }
Word get_flags() {
  Word value;
  asm volatile("mrs %0, fpsr" : "=r"(value));
  return value & 0x9f;
}
void clear_flags() { asm volatile("msr fpsr, %0" : : "r"(Word{0}) : "memory"); }
#endif

class HostSetting {
 public:
  explicit HostSetting(Word value) : saved_(get_control()) {
    clear_flags();
    set_control(value);
  }
  ~HostSetting() {
    set_control(saved_);
    clear_flags();
  }

 private:
  Word saved_;
};

// Does this processor have it? Trapping, and flushing of half precision, are optional on ARM.
bool can_set(Word value) {
  const HostSetting host(value);
  return get_control() == value;
}

// Two scans of the same memory, by every instruction set: as usual, and with the host's register set so.
void expect_unchanged_by(Word host_setting) {
  std::mt19937_64 random(5);
  for (const DType dtype : kAllDTypes) {
    const BitFormat format = bit_format(dtype);
    const std::size_t numel = 203, reals = numel * static_cast<std::size_t>(info(dtype).reals_per_element);
    for (int content = 0; content < 3; ++content) {
      std::vector<unsigned char> data(numel * element_size(dtype));
      fill(data.data(), reals, format, content == 0 ? Mix::kFinite : Mix::kAll, random);
      if (content == 2) {  // nothing but subnormals, so that flushing any of them shows in every field
        for (std::size_t i = 0; i < reals; ++i) {
          put(data.data(), i, (1 + random() % format.mantissa_mask()) | (random() & format.sign_mask()), format);
        }
      }
      const Health expected = reference_scan(data.data(), numel, dtype);
      const std::int64_t sizes[] = {static_cast<std::int64_t>(numel)}, strides[] = {1};
      for (const Kernels* with : available_kernels()) {
        Health full, reference, strided, merged;
        Quick quick, quick_strided;
        Word after = 0;
        {
          const HostSetting host(host_setting);
          full = full_scan_with(*with, data.data(), numel, dtype);
          quick = quick_scan_with(*with, data.data(), numel, dtype);
          reference = reference_scan(data.data(), numel, dtype);
          strided = full_scan_strided(data.data(), sizes, strides, 1, dtype);
          quick_strided = quick_scan_strided(data.data(), sizes, strides, 1, dtype);
          after = get_control();
        }
        EXPECT_EQ(after, host_setting);
        EXPECT_TRUE(same(full, expected, dtype)) << with->isa << " " << info(dtype).name;
        EXPECT_TRUE(same(reference, expected, dtype)) << info(dtype).name;
        EXPECT_TRUE(same(strided, expected, dtype)) << info(dtype).name;
        EXPECT_TRUE(same(quick, expected, dtype)) << with->isa << " " << info(dtype).name;
        EXPECT_TRUE(same(quick_strided, expected, dtype)) << info(dtype).name;
      }
    }
  }
}

TEST(FpEnv, FlushingSubnormalsChangesNothing) {
  if (!can_set(kFlush)) GTEST_SKIP() << "this processor cannot flush half precision";
  expect_unchanged_by(kFlush);
}
TEST(FpEnv, AnotherRoundingModeChangesNothing) {
  ASSERT_TRUE(can_set(kRoundUp));
  expect_unchanged_by(kRoundUp);
}

// A conversion of a signalling NaN would raise SIGFPE here.
TEST(FpEnv, NothingTrapsInAHostThatTraps) {
  if (!can_set(kTrap)) GTEST_SKIP() << "this processor raises no signal for a floating-point exception";
  std::mt19937_64 random(6);
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    std::vector<unsigned char> data(1000 * element_size(dtype));
    fill(data.data(), 1000, bit_format(dtype), Mix::kAll, random);
    const Health expected = reference_scan(data.data(), 1000, dtype);
    for (const Kernels* with : available_kernels()) {
      Health full;
      Quick quick;
      Word after = 0, flags = 1;
      {
        const HostSetting host(kTrap);
        full = full_scan_with(*with, data.data(), 1000, dtype);
        quick = quick_scan_with(*with, data.data(), 1000, dtype);
        after = get_control();
        flags = get_flags();
      }
      EXPECT_EQ(after, kTrap);
      EXPECT_EQ(flags, 0u) << "no exception flag may be left behind";
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
    const HostSetting host(kFlush);
    both = merge(b, a);
  }
  EXPECT_EQ(order_key(both.max), 1);
  EXPECT_EQ(order_key(both.absmax), 1);
  EXPECT_EQ(order_key(both.min), 0);
}

}  // namespace
}  // namespace finitude::sense
#endif  // an architecture whose control register we know
