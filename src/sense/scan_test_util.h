// Shared by the tests of this folder: dtypes, significant bit patterns, and memory with forbidden neighbours.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "sense/differ.h"
#include "sense/format.h"
#include "sense/scan_with.h"

namespace finitude::sense {

inline constexpr DType kAllDTypes[] = {DType::kFloat64,    DType::kFloat32,       DType::kFloat16,
                                       DType::kBFloat16,   DType::kComplex128,    DType::kComplex64,
                                       DType::kComplex32,  DType::kFloat8E4M3FN,  DType::kFloat8E4M3FNUZ,
                                       DType::kFloat8E5M2, DType::kFloat8E5M2FNUZ};

inline std::size_t element_size(DType dtype) {
  return info(dtype).size_bytes * static_cast<std::size_t>(info(dtype).reals_per_element);
}

inline std::vector<std::uint64_t> bad_codes(const BitFormat& format) {
  const std::uint64_t sign = format.sign_mask(), inf = format.exponent_mask();
  switch (format.specials) {
    case Specials::kFn:
      return {format.magnitude_mask(), format.magnitude_mask() | sign};
    case Specials::kFnuz:
      return {sign};
    case Specials::kIeee:
      break;
  }
  const std::uint64_t quiet = inf | (std::uint64_t{1} << (format.mantissa_bits - 1));
  return {quiet, quiet | sign, inf | 1, inf | 1 | sign, format.magnitude_mask(), format.magnitude_mask() | sign,
          inf,   inf | sign};  // NaN quiet, signalling, all ones; +Inf, -Inf
}

inline std::vector<std::uint64_t> finite_codes(const BitFormat& format) {
  const std::uint64_t least_normal = std::uint64_t{1} << format.mantissa_bits;
  const std::uint64_t one = static_cast<std::uint64_t>(format.bias) << format.mantissa_bits;
  std::vector<std::uint64_t> codes;
  for (const std::uint64_t magnitude : {std::uint64_t{0}, std::uint64_t{1}, format.mantissa_mask(), least_normal,
                                        least_normal + 1, one, format.first_non_finite() - 1}) {
    codes.push_back(magnitude);
    if (magnitude != 0 || format.specials != Specials::kFnuz) codes.push_back(magnitude | format.sign_mask());
  }
  return codes;
}

inline void put(unsigned char* at, std::size_t index, std::uint64_t code, const BitFormat& format) {
  const auto size = static_cast<std::size_t>(format.bits / 8);
  for (std::size_t byte = 0; byte < size; ++byte) {  // little endian, as every machine torch runs on
    at[index * size + byte] = static_cast<unsigned char>(code >> (8 * byte));
  }
}

enum class Mix { kOrdinary, kFinite, kAll };

// kOrdinary: magnitudes around 1. kFinite: also zeros, subnormals and extremes. kAll: also NaN and Inf.
inline void fill(unsigned char* at, std::size_t reals, const BitFormat& format, Mix mix, std::mt19937_64& random) {
  const auto bad = bad_codes(format), finite = finite_codes(format);
  const std::uint64_t one = static_cast<std::uint64_t>(format.bias) << format.mantissa_bits;
  for (std::size_t i = 0; i < reals; ++i) {
    const std::uint64_t pick = random();
    std::uint64_t code = (one - (pick & 1) * (format.mantissa_mask() + 1)) | (random() & format.mantissa_mask()) |
                         (random() & format.sign_mask());
    if (mix != Mix::kOrdinary && pick % 5 == 0) code = finite[random() % finite.size()];
    if (mix == Mix::kAll && pick % 7 == 0) code = bad[random() % bad.size()];
    put(at, i, code, format);
  }
}

inline std::ostream& operator<<(std::ostream& out, const Health& h) {
  return out << "numel " << h.numel << " nan " << h.nan << " inf +" << h.pos_inf << " -" << h.neg_inf << " zero "
             << h.zero << " subnormal " << h.subnormal << " absmax " << h.absmax << " min " << h.min << " max " << h.max
             << " sum_sq " << h.sum_sq;
}
inline std::ostream& operator<<(std::ostream& out, const Quick& q) {
  return out << "bad " << q.bad << " absmax " << q.absmax;
}

// differ(), for EXPECT_TRUE.
template <typename Actual>
::testing::AssertionResult same(const Actual& actual, const Health& expected, DType dtype = DType::kFloat64) {
  const char* field = differ(actual, expected, dtype);
  if (field == nullptr) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << field << " differs: " << actual << "; expected " << expected;
}

// Memory that is followed, and preceded, by pages nobody may touch.
class FencedMemory {
 public:
  explicit FencedMemory(std::size_t bytes) : page_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))) {
    inner_ = (bytes + page_ - 1) / page_ * page_;
    base_ =
        static_cast<unsigned char*>(mmap(nullptr, inner_ + 2 * page_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base_ + page_, inner_, PROT_READ | PROT_WRITE);
  }
  ~FencedMemory() { munmap(base_, inner_ + 2 * page_); }
  FencedMemory(const FencedMemory&) = delete;
  FencedMemory& operator=(const FencedMemory&) = delete;
  unsigned char* begin() const { return base_ + page_; }
  unsigned char* end() const { return begin() + inner_; }

 private:
  std::size_t page_, inner_ = 0;
  unsigned char* base_ = nullptr;
};

}  // namespace finitude::sense
