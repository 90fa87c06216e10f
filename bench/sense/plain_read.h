// The yardstick: reading memory and doing next to nothing with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace finitude::bench {

// Reads `bytes` from `data` and returns something that depends on all of it.
using PlainRead = std::uint64_t (*)(const void* data, std::size_t bytes);

struct ReadVariant {
  const char* name;
  PlainRead read;
};

// Ways to read that differ in how many loads are in flight and whether memory is asked for ahead, for the
// best vectors of this machine and, where those are wider, also for 32-byte ones. What counts as plain read
// is the fastest of them.
std::span<const ReadVariant> read_variants();

}  // namespace finitude::bench
