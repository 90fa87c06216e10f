// A fast 64-bit checksum that depends on the position of every byte. Not cryptographic.
#pragma once

#include <cstddef>
#include <cstdint>

namespace finitude::base {

// Feed pieces in order; equal concatenations give equal sums only if they are cut at the same multiples of 8 bytes.
std::uint64_t checksum(const void* data, std::size_t size_bytes, std::uint64_t seed = 0) noexcept;

}  // namespace finitude::base
