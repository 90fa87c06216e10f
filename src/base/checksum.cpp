#include "base/checksum.h"

#include <cstring>

namespace finitude::base {
namespace {

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): every input bit reaches every output bit.
std::uint64_t mix(std::uint64_t x) noexcept {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace

std::uint64_t checksum(const void* data, std::size_t size_bytes, std::uint64_t seed) noexcept {
  const auto* p = static_cast<const unsigned char*>(data);
  std::uint64_t lanes[4] = {seed + 1, seed + 2, seed + 3, seed + 4};
  std::size_t i = 0;
  for (; i + 32 <= size_bytes; i += 32) {
    std::uint64_t w[4];
    std::memcpy(w, p + i, 32);
    for (int l = 0; l < 4; ++l) lanes[l] = (lanes[l] ^ w[l]) * 0x9e3779b97f4a7c15ull + (lanes[l] >> 29);
  }
  std::uint64_t sum = mix(lanes[0]) ^ mix(lanes[1] + 1) ^ mix(lanes[2] + 2) ^ mix(lanes[3] + 3);
  for (; i < size_bytes; i += 8) {
    std::uint64_t w = 0;
    std::memcpy(&w, p + i, size_bytes - i < 8 ? size_bytes - i : 8);
    sum = mix(sum ^ w) + i;
  }
  return mix(sum ^ size_bytes);
}

}  // namespace finitude::base
