// The trace as a file: JSON lines. The first line describes storages, stacks and sinks, then comes one line
// per op in order of start. Numbers that JSON cannot hold are the strings "NaN", "Infinity" and "-Infinity".
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "record/trace.h"

namespace finitude::record {

inline constexpr int kTraceFormat = 1;

// Limits of the reader.
inline constexpr std::size_t kMaxTraceBytes = std::size_t{1} << 30;
inline constexpr std::size_t kMaxTraceLine = std::size_t{64} << 20;
inline constexpr std::size_t kMaxTraceOps = 2'000'000;
inline constexpr std::size_t kMaxTraceStorages = 4'000'000;
inline constexpr std::size_t kMaxTraceStacks = 1'000'000;
inline constexpr std::size_t kMaxTraceSinks = 100'000;
inline constexpr std::size_t kMaxTraceFrames = 256;      // of one stack
inline constexpr std::size_t kMaxTraceTensors = 65'536;  // inputs or outputs of one op
inline constexpr std::size_t kMaxTraceScalars = 1024;
inline constexpr std::size_t kMaxTraceDims = 64;
inline constexpr std::size_t kMaxTraceText = 65'536;  // bytes of one string

std::string to_jsonl(const Trace& trace);

// Reads what to_jsonl wrote; unknown keys are skipped. False on anything malformed, inconsistent or beyond
// the limits: then `error` says what and on which line, and `trace` is empty.
bool from_jsonl(std::string_view text, Trace* trace, std::string* error);

}  // namespace finitude::record
