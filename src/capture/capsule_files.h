// The names of the files of a capsule.
#pragma once

#include <array>
#include <string_view>

namespace finitude::capture {

inline constexpr const char* kAboutFile = "capsule.json";
inline constexpr const char* kTapeFile = "tape.bin";
inline constexpr const char* kTensorFile = "tensors.safetensors";
inline constexpr const char* kStartFile = "start.safetensors";
inline constexpr const char* kStatisticsFile = "statistics.bin";
inline constexpr std::array<std::string_view, 5> kCapsuleFiles{kAboutFile, kTapeFile, kTensorFile, kStartFile,
                                                               kStatisticsFile};

}  // namespace finitude::capture
