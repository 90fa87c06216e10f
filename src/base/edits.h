// For fuzz targets: input bytes as changes of a sound document, so that most of what is tried is nearly right.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace finitude::base {

// Each four bytes are one change: what, where (two bytes), and with which byte. At most `most` changes.
inline std::string edited(std::string sound, const std::uint8_t* input, std::size_t size, std::size_t most = 8) {
  constexpr std::size_t kMaxGrowth = 4096;
  const std::size_t limit = sound.size() + kMaxGrowth;
  for (std::size_t i = 0; i + 3 < size && i / 4 < most && !sound.empty(); i += 4) {
    const std::size_t at = (std::size_t{input[i + 1]} << 8 | input[i + 2]) * sound.size() / 65536;
    const std::size_t count = std::min<std::size_t>(1 + input[i + 3] % 64, sound.size() - at);
    switch (input[i] % 5) {
      case 0:
      case 1:
        sound[at] = static_cast<char>(input[i + 3]);
        break;
      case 2:
        sound.erase(at, count);
        break;
      case 3:
        sound.insert(sound.begin() + static_cast<std::ptrdiff_t>(at), static_cast<char>(input[i + 3]));
        break;
      default:
        if (sound.size() + count <= limit) sound.insert(at, sound.substr(at, count));  // doubled
    }
  }
  return sound;
}

}  // namespace finitude::base
