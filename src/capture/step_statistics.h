// The statistics of a traced step as a file: each op with its place, and of each tensor that it read and wrote how many
// values of each kind there were and their range. No values. docs/format/statistics.md describes it byte by byte.
#pragma once

#include <string>
#include <string_view>

#include "finitude/status.h"
#include "record/trace.h"

namespace finitude::capture {

inline constexpr std::string_view kStatisticsMagic = "FitStat\n";
inline constexpr std::uint32_t kStatisticsVersion = 1;
inline constexpr std::size_t kStatisticsHeaderBytes = 40;

// Bounds of both directions: what a step takes in memory once it is read, and how many parts it may have. Of a larger
// one the first ops are written, and it is marked as truncated.
inline constexpr std::uint64_t kMostStatisticsMemory = std::uint64_t{256} << 20;
inline constexpr std::uint64_t kMostStatisticsParts = std::uint64_t{3} << 20;

// Of each stack the innermost frame. redact: no frame, no argument that is not a tensor, and no range that gives values
// away (record/reported_range.h).
std::string write_statistics(const record::Trace& trace, bool redact);

// Hostile bytes are reported, never followed. Afterwards what ops, tensors and sinks refer to is there, and counts add
// up. Without strides, and storages without an origin's stack. redacted: whether it was written so; may be null.
Status read_statistics(std::string_view bytes, record::Trace* trace, bool* redacted = nullptr);

}  // namespace finitude::capture
