// Memory that holds other finite values than its last writer left there, with no write in between that anything saw.
#pragma once

#include <string_view>

namespace finitude::record {

// The name of the op that is in a trace for such a write: right before the op that found it. It reads what the
// memory held and writes what it holds.
inline constexpr std::string_view kUnseenWrite = "memory::unseen_write";

// Numbers of it, as names of ScalarUse; those that are not known are missing.
inline constexpr std::string_view kChangedBytes = "changed_bytes";  // whole elements
inline constexpr std::string_view kAtLeast = "at_least";  // 1: those are only the ones out of the range that was there
inline constexpr std::string_view kFirstByte = "first_byte";  // of the span
inline constexpr std::string_view kEndByte = "end_byte";
inline constexpr std::string_view kFiniteWithout =
    "finite_without";  // 1: a replay, which lacks the write, comes out finite

}  // namespace finitude::record
