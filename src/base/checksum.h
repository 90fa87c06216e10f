// A fast 64-bit checksum that depends on the position of every byte. Not cryptographic.
#pragma once

#include <cstddef>
#include <cstdint>

namespace finitude::base {

// With the sum of one piece as the seed of the next, equal concatenations give equal sums only if they are cut alike.
std::uint64_t checksum(const void* data, std::size_t size_bytes, std::uint64_t seed = 0) noexcept;

// The same of pieces, however they are cut: sum() is checksum(all of them in order).
class Checksum {
 public:
  explicit Checksum(std::uint64_t seed = 0) noexcept : lanes_{seed + 1, seed + 2, seed + 3, seed + 4} {}
  void add(const void* data, std::size_t size_bytes) noexcept;
  std::uint64_t sum() const noexcept;

 private:
  static constexpr std::size_t kBlock = 32;
  std::uint64_t lanes_[4], size_bytes_ = 0;
  std::size_t held_ = 0;  // bytes of a block that is not full yet
  unsigned char block_[kBlock] = {};
};

}  // namespace finitude::base
