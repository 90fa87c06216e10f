// One real as it lies in memory, of 8, 16, 32 or 64 bits.
#pragma once

#include <cstdint>
#include <cstring>

namespace finitude::sense {

inline std::uint64_t load_code(const unsigned char* at, int bits) noexcept {
  switch (bits) {
    case 8:
      return *at;
    case 16: {
      std::uint16_t code;
      std::memcpy(&code, at, sizeof code);
      return code;
    }
    case 32: {
      std::uint32_t code;
      std::memcpy(&code, at, sizeof code);
      return code;
    }
    default: {
      std::uint64_t code;
      std::memcpy(&code, at, sizeof code);
      return code;
    }
  }
}

}  // namespace finitude::sense
