#include "base/checksum.h"

#include <algorithm>
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

// As many whole blocks as there are; how many bytes that were.
std::size_t blocks(const unsigned char* p, std::size_t size_bytes, std::uint64_t* into) noexcept {
  std::uint64_t lanes[4] = {into[0], into[1], into[2], into[3]};
  std::size_t i = 0;
  for (; i + 32 <= size_bytes; i += 32) {
    std::uint64_t w[4];
    std::memcpy(w, p + i, 32);
    for (int l = 0; l < 4; ++l) lanes[l] = (lanes[l] ^ w[l]) * 0x9e3779b97f4a7c15ull + (lanes[l] >> 29);
  }
  std::memcpy(into, lanes, sizeof lanes);
  return i;
}

// What `lanes` hold after the whole blocks, and the less than a block behind them.
std::uint64_t finish(const std::uint64_t* lanes, const unsigned char* tail, std::size_t tail_bytes,
                     std::size_t size_bytes) noexcept {
  std::uint64_t sum = mix(lanes[0]) ^ mix(lanes[1] + 1) ^ mix(lanes[2] + 2) ^ mix(lanes[3] + 3);
  for (std::size_t i = 0; i < tail_bytes; i += 8) {
    std::uint64_t w = 0;
    std::memcpy(&w, tail + i, std::min<std::size_t>(tail_bytes - i, 8));
    sum = mix(sum ^ w) + (size_bytes - tail_bytes + i);
  }
  return mix(sum ^ size_bytes);
}

}  // namespace

// Not by way of the class: a step takes sums of losses and batches, and needs no copy of their ends.
std::uint64_t checksum(const void* data, std::size_t size_bytes, std::uint64_t seed) noexcept {
  const auto* p = static_cast<const unsigned char*>(data);
  std::uint64_t lanes[4] = {seed + 1, seed + 2, seed + 3, seed + 4};
  const std::size_t done = blocks(p, size_bytes, lanes);
  return finish(lanes, p + done, size_bytes - done, size_bytes);
}

void Checksum::add(const void* data, std::size_t size_bytes) noexcept {
  const auto* p = static_cast<const unsigned char*>(data);
  size_bytes_ += size_bytes;
  if (held_ != 0) {
    const std::size_t more = std::min(kBlock - held_, size_bytes);
    if (more != 0) std::memcpy(block_ + held_, p, more);
    held_ += more;
    p += more;
    size_bytes -= more;
    if (held_ < kBlock) return;
    blocks(block_, kBlock, lanes_);
    held_ = 0;
  }
  const std::size_t done = blocks(p, size_bytes, lanes_);
  held_ = size_bytes - done;
  if (held_ != 0) std::memcpy(block_, p + done, held_);
}

std::uint64_t Checksum::sum() const noexcept { return finish(lanes_, block_, held_, size_bytes_); }

}  // namespace finitude::base
