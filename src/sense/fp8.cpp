// Counting float8 codes and summing up what each of them means.
#include "sense/fp8.h"

#include <algorithm>
#include <array>

namespace finitude::sense {
namespace {

struct Meaning {
  double value;  // 0 if not finite
  Kind kind;
};
using Meanings = std::array<Meaning, 256>;

constexpr Meanings meanings_of(const BitFormat& format) {
  Meanings meanings{};
  for (unsigned code = 0; code < 256; ++code) {
    const Kind kind = classify(code, format);
    const bool finite = kind == Kind::kZero || kind == Kind::kSubnormal || kind == Kind::kNormal;
    meanings[code] = {finite ? decode(code, format) : 0.0, kind};
  }
  return meanings;
}

constexpr Meanings kE4M3FN = meanings_of(kFloat8E4M3FNFormat);
constexpr Meanings kE4M3FNUZ = meanings_of(kFloat8E4M3FNUZFormat);
constexpr Meanings kE5M2 = meanings_of(kFloat8E5M2Format);
constexpr Meanings kE5M2FNUZ = meanings_of(kFloat8E5M2FNUZFormat);

const Meanings& meanings(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat8E4M3FN:
      return kE4M3FN;
    case DType::kFloat8E4M3FNUZ:
      return kE4M3FNUZ;
    case DType::kFloat8E5M2:
      return kE5M2;
    default:
      return kE5M2FNUZ;
  }
}

void add(Health& health, const Meaning& meaning, std::uint64_t times) noexcept {
  if (times == 0) return;
  const bool first = health.finite() == 0;
  health.numel += times;
  switch (meaning.kind) {
    case Kind::kNan:
      health.nan += times;
      return;
    case Kind::kPosInf:
      health.pos_inf += times;
      return;
    case Kind::kNegInf:
      health.neg_inf += times;
      return;
    case Kind::kZero:
      health.zero += times;
      break;
    case Kind::kSubnormal:
      health.subnormal += times;
      break;
    case Kind::kNormal:
      break;
  }
  const double magnitude = meaning.value < 0 ? -meaning.value : meaning.value;
  health.min = first ? meaning.value : std::min(health.min, meaning.value);
  health.max = first ? meaning.value : std::max(health.max, meaning.value);
  health.absmax = std::max(health.absmax, magnitude);
  health.sum_sq += static_cast<double>(times) * (magnitude * magnitude);
}

}  // namespace

Health full_scan_fp8(const void* data, std::size_t n, DType dtype) noexcept {
  const Meanings& table = meanings(dtype);
  const auto* bytes = static_cast<const unsigned char*>(data);
  Health health;
  if (n < 64) {
    for (std::size_t i = 0; i < n; ++i) add(health, table[bytes[i]], 1);
    return health;
  }
  std::array<std::uint64_t, 256> counts{};
  while (n != 0) {
    // Four histograms: runs of one value would otherwise wait for their own last increment.
    std::array<std::array<std::uint32_t, 256>, 4> part{};
    const std::size_t chunk = std::min(n, std::size_t{1} << 30);
    std::size_t i = 0;
    for (; i + 4 <= chunk; i += 4) {
      ++part[0][bytes[i]];
      ++part[1][bytes[i + 1]];
      ++part[2][bytes[i + 2]];
      ++part[3][bytes[i + 3]];
    }
    for (; i < chunk; ++i) ++part[0][bytes[i]];
    for (std::size_t code = 0; code < 256; ++code) {
      counts[code] += std::uint64_t{part[0][code]} + part[1][code] + part[2][code] + part[3][code];
    }
    bytes += chunk;
    n -= chunk;
  }
  for (std::size_t code = 0; code < 256; ++code) add(health, table[code], counts[code]);
  return health;
}

}  // namespace finitude::sense
