// What the values in a vector of memory say, by their bits: for the device (CUDA) and for the host. Kernels read
// several vectors at once; one comparison says whether all their values are finite.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "sense/format.h"

#if defined(__CUDACC__)
#define FINITUDE_HD __host__ __device__ inline
#else
#define FINITUDE_HD inline
#endif
#if defined(__CUDA_ARCH__)
#define FINITUDE_UNROLL _Pragma("unroll")  // arrays of registers are indexed by constants only
#else
#define FINITUDE_UNROLL
#endif

namespace finitude::sense::multi {

inline constexpr std::uint32_t kVectorBytes = 16;
inline constexpr std::uint32_t kUnroll = 4;  // vectors that a thread has in flight

// The number formats of real elements; their complex forms are twice as many of them.
enum Format : std::uint32_t { kF64, kF32, kF16, kBF16, kE4M3FN, kE4M3FNUZ, kE5M2, kE5M2FNUZ, kFormats };

constexpr BitFormat layout_of(std::uint32_t format) {
  switch (format) {
    case kF64:
      return kFloat64Format;
    case kF32:
      return kFloat32Format;
    case kF16:
      return kFloat16Format;
    case kBF16:
      return kBFloat16Format;
    case kE4M3FN:
      return kFloat8E4M3FNFormat;
    case kE4M3FNUZ:
      return kFloat8E4M3FNUZFormat;
    case kE5M2:
      return kFloat8E5M2Format;
    default:
      return kFloat8E5M2FNUZFormat;
  }
}

// kFormats for a dtype without special values.
constexpr std::uint32_t format_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kComplex128:
      return kF64;
    case DType::kFloat32:
    case DType::kComplex64:
      return kF32;
    case DType::kFloat16:
    case DType::kComplex32:
      return kF16;
    case DType::kBFloat16:
      return kBF16;
    case DType::kFloat8E4M3FN:
      return kE4M3FN;
    case DType::kFloat8E4M3FNUZ:
      return kE4M3FNUZ;
    case DType::kFloat8E5M2:
      return kE5M2;
    case DType::kFloat8E5M2FNUZ:
      return kE5M2FNUZ;
    default:
      return kFormats;
  }
}

constexpr std::uint32_t reals_of(DType dtype) {
  return dtype == DType::kComplex128 || dtype == DType::kComplex64 || dtype == DType::kComplex32 ? 2 : 1;
}

// Of a part of the values. absmax: the bits of the largest finite magnitude as a double; such bits order like the
// numbers.
struct Tally {
  double sum_sq = 0;
  std::uint64_t absmax = 0;
  std::uint64_t nan = 0, pos_inf = 0, neg_inf = 0;
};

FINITUDE_HD double double_of(std::uint64_t bits) {
#if defined(__CUDA_ARCH__)
  return __longlong_as_double(static_cast<long long>(bits));
#else
  return std::bit_cast<double>(bits);
#endif
}

FINITUDE_HD std::uint64_t bits_of(double value) {
#if defined(__CUDA_ARCH__)
  return static_cast<std::uint64_t>(__double_as_longlong(value));
#else
  return std::bit_cast<std::uint64_t>(value);
#endif
}

FINITUDE_HD float float_of(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

// sum + x * x, rounded once on either side.
FINITUDE_HD double add_square(double sum, double x) {
#if defined(__CUDA_ARCH__)
  return __fma_rn(x, x, sum);
#else
  return std::fma(x, x, sum);
#endif
}

FINITUDE_HD double add(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}

FINITUDE_HD std::uint64_t larger(std::uint64_t a, std::uint64_t b) { return a > b ? a : b; }

FINITUDE_HD void merge(Tally& into, const Tally& other) {
  into.sum_sq = add(into.sum_sq, other.sum_sq);
  into.absmax = larger(into.absmax, other.absmax);
  into.nan += other.nan;
  into.pos_inf += other.pos_inf;
  into.neg_inf += other.neg_inf;
}

FINITUDE_HD bool is_bad(const Tally& tally) { return (tally.nan | tally.pos_inf | tally.neg_inf) != 0; }

// 2^power as a float, for -126 <= power <= 127.
constexpr std::uint32_t power_of_two(int power) { return static_cast<std::uint32_t>(power + 127) << 23; }

// The value of a finite magnitude. Formats below 32 bits: their fields, shifted to where a float has them, are the
// number but for the difference of the biases, and a power of two sets that right, for subnormals too (no flush to zero
// here).
template <std::uint32_t kFormat>
FINITUDE_HD double value_of(std::uint64_t magnitude) {
  constexpr BitFormat format = layout_of(kFormat);
  if constexpr (format.bits == 64) {
    return double_of(magnitude);
  } else if constexpr (format.bias == 127) {
    return static_cast<double>(float_of(static_cast<std::uint32_t>(magnitude) << (23 - format.mantissa_bits)));
  } else {
    constexpr std::uint32_t scale = power_of_two(127 - format.bias);
    const float scaled =
        float_of(static_cast<std::uint32_t>(magnitude) << (23 - format.mantissa_bits)) * float_of(scale);
    return static_cast<double>(scaled);
  }
}

// One element, whatever it is.
template <std::uint32_t kFormat>
FINITUDE_HD void take_code(Tally& tally, std::uint64_t code) {
  constexpr BitFormat format = layout_of(kFormat);
  const Kind kind = classify(code, format);
  if (kind == Kind::kNan) {
    ++tally.nan;
  } else if (kind == Kind::kPosInf) {
    ++tally.pos_inf;
  } else if (kind == Kind::kNegInf) {
    ++tally.neg_inf;
  } else {
    const double value = value_of<kFormat>(code & format.magnitude_mask());
    tally.absmax = larger(tally.absmax, bits_of(value));
    tally.sum_sq = add_square(tally.sum_sq, value);
  }
}

struct alignas(16) Vector {
  std::uint32_t word[4];
};

FINITUDE_HD Vector load_vector(std::uint64_t address) {
#if defined(__CUDA_ARCH__)
  const uint4 v = __ldg(reinterpret_cast<const uint4*>(address));
  return Vector{{v.x, v.y, v.z, v.w}};
#else
  Vector v;
  std::memcpy(&v, reinterpret_cast<const void*>(address), sizeof v);
  return v;
#endif
}

template <std::uint32_t kFormat>
FINITUDE_HD std::uint64_t load_code(std::uint64_t address) {
  constexpr int kBits = layout_of(kFormat).bits;
#if defined(__CUDA_ARCH__)
  if constexpr (kBits == 64)
    return *reinterpret_cast<const std::uint64_t*>(address);
  else if constexpr (kBits == 32)
    return *reinterpret_cast<const std::uint32_t*>(address);
  else if constexpr (kBits == 16)
    return *reinterpret_cast<const std::uint16_t*>(address);
  else
    return *reinterpret_cast<const std::uint8_t*>(address);
#else
  std::uint64_t code = 0;
  std::memcpy(&code, reinterpret_cast<const void*>(address), kBits / 8);  // little endian, as every machine with CUDA
  return code;
#endif
}

template <int kBits>
FINITUDE_HD std::uint64_t code_in(const Vector& v, std::uint32_t index) {
  if constexpr (kBits == 64) {
    return v.word[2 * index] | static_cast<std::uint64_t>(v.word[2 * index + 1]) << 32;
  } else {
    constexpr std::uint32_t kPerWord = 32 / kBits;
    constexpr std::uint32_t kMask = kBits == 32 ? 0xffffffffu : (1u << (kBits % 32)) - 1;
    return v.word[index / kPerWord] >> (index % kPerWord * kBits) & kMask;
  }
}

// Lane by lane the larger of two words of 2 or 4 unsigned lanes.
template <int kBits>
FINITUDE_HD std::uint32_t larger_lanes(std::uint32_t a, std::uint32_t b) {
#if defined(__CUDA_ARCH__)
  if constexpr (kBits == 16)
    return __vmaxu2(a, b);
  else if constexpr (kBits == 8)
    return __vmaxu4(a, b);
  else
    return a > b ? a : b;
#else
  std::uint32_t result = 0;
  for (int shift = 0; shift < 32; shift += kBits) {
    const std::uint32_t mask = kBits == 32 ? 0xffffffffu : (1u << (kBits % 32)) - 1;
    const std::uint32_t x = a >> shift & mask, y = b >> shift & mask;
    result |= (x > y ? x : y) << shift;
  }
  return result;
#endif
}

// Larger than every finite magnitude in a word, in each lane that is not finite; the magnitude in the others. The code
// of a fnuz NaN is the sign alone; every other code is finite.
template <std::uint32_t kFormat>
FINITUDE_HD std::uint32_t rank_lanes(std::uint32_t word) {
  if constexpr (layout_of(kFormat).specials == Specials::kFnuz) {
    const std::uint32_t magnitude = word & 0x7f7f7f7fu;
    // 0x80 in the lanes whose magnitude is zero; no borrow crosses a lane, as 0x80 + magnitude >= 0x80.
    const std::uint32_t is_zero = ~((magnitude | 0x80808080u) - 0x01010101u) & 0x80808080u;
    return magnitude | (word & is_zero);
  } else if constexpr (layout_of(kFormat).bits == 8) {
    return word & 0x7f7f7f7fu;
  } else if constexpr (layout_of(kFormat).bits == 16) {
    return word & 0x7fff7fffu;
  } else {
    return word & 0x7fffffffu;
  }
}

// The largest rank among kUnroll vectors; below 64 bits.
template <std::uint32_t kFormat>
FINITUDE_HD std::uint64_t top_rank(const Vector* v) {
  constexpr int kBits = layout_of(kFormat).bits;
  if constexpr (kBits == 64) {
    std::uint64_t top = 0;
    FINITUDE_UNROLL
    for (std::uint32_t u = 0; u < kUnroll; ++u) {
      FINITUDE_UNROLL
      for (std::uint32_t i = 0; i < 2; ++i) top = larger(top, code_in<64>(v[u], i) & ~(std::uint64_t{1} << 63));
    }
    return top;
  } else {
    std::uint32_t lanes = 0;
    FINITUDE_UNROLL
    for (std::uint32_t u = 0; u < kUnroll; ++u) {
      FINITUDE_UNROLL
      for (std::uint32_t w = 0; w < 4; ++w) lanes = larger_lanes<kBits>(lanes, rank_lanes<kFormat>(v[u].word[w]));
    }
    std::uint32_t top = 0;
    FINITUDE_UNROLL
    for (int shift = 0; shift < 32; shift += kBits) {
      const std::uint32_t mask = kBits == 32 ? 0xffffffffu : (1u << (kBits % 32)) - 1;
      const std::uint32_t lane = lanes >> shift & mask;
      top = lane > top ? lane : top;
    }
    return top;
  }
}

// kUnroll vectors whose values are all finite.
template <std::uint32_t kFormat>
FINITUDE_HD void take_finite(Tally& tally, const Vector* v, std::uint64_t top) {
  constexpr BitFormat format = layout_of(kFormat);
  constexpr std::uint32_t kPerVector = kVectorBytes * 8 / format.bits;
  tally.absmax = larger(tally.absmax, bits_of(value_of<kFormat>(top)));
  FINITUDE_UNROLL
  for (std::uint32_t u = 0; u < kUnroll; ++u) {
    FINITUDE_UNROLL
    for (std::uint32_t i = 0; i < kPerVector; ++i) {
      tally.sum_sq =
          add_square(tally.sum_sq, value_of<kFormat>(code_in<format.bits>(v[u], i) & format.magnitude_mask()));
    }
  }
}

// The code of one real, its format known at run time, and its value with sign, NaN and Inf.
FINITUDE_HD std::uint64_t load_any(std::uint64_t address, std::uint32_t format) {
  switch (layout_of(format).bits) {
    case 64:
      return load_code<kF64>(address);
    case 32:
      return load_code<kF32>(address);
    case 16:
      return load_code<kF16>(address);
    default:
      return load_code<kE5M2>(address);
  }
}

FINITUDE_HD double value_any(std::uint64_t code, std::uint32_t format) {
  const BitFormat layout = layout_of(format);
  const Kind kind = classify(code, layout);
  if (kind == Kind::kNan) return double_of(0x7ff8000000000000u);
  if (kind == Kind::kPosInf) return double_of(0x7ff0000000000000u);
  if (kind == Kind::kNegInf) return double_of(0xfff0000000000000u);
  const std::uint64_t magnitude = code & layout.magnitude_mask();
  double value = 0;
  switch (format) {
    case kF64:
      value = value_of<kF64>(magnitude);
      break;
    case kF32:
      value = value_of<kF32>(magnitude);
      break;
    case kF16:
      value = value_of<kF16>(magnitude);
      break;
    case kBF16:
      value = value_of<kBF16>(magnitude);
      break;
    case kE4M3FN:
      value = value_of<kE4M3FN>(magnitude);
      break;
    case kE4M3FNUZ:
      value = value_of<kE4M3FNUZ>(magnitude);
      break;
    case kE5M2:
      value = value_of<kE5M2>(magnitude);
      break;
    default:
      value = value_of<kE5M2FNUZ>(magnitude);
      break;
  }
  return (code & layout.sign_mask()) != 0 ? -value : value;
}

FINITUDE_HD bool is_finite_code(std::uint64_t code, std::uint32_t format) {
  const Kind kind = classify(code, layout_of(format));
  return kind != Kind::kNan && kind != Kind::kPosInf && kind != Kind::kNegInf;
}

}  // namespace finitude::sense::multi
