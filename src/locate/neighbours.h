// Whose memory lies around a span that was changed: a write out of bounds comes from a neighbour, a write after free
// from an earlier owner.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "record/trace.h"

namespace finitude::locate {

enum class Life : std::uint8_t { kInUse, kGivenBack, kNotKnown };

struct Owner {
  record::StorageId storage = record::kNone;
  std::int64_t gap = 0;                    // bytes between it and the span; 0 for one that has the same memory
  record::OpId made_by = record::kNone;    // the outermost op that gave it; kNone: it was there before the step
  record::OpId last_used = record::kNone;  // the last op before the moment that had to do with it
  Life life = Life::kNotKnown;             // at the moment
};

struct Around {
  std::uint64_t first = 0, end = 0;    // addresses of the span
  std::optional<Owner> before, after;  // the next ones, within kMostGap; one that is in use goes before one that is not
  std::vector<Owner> same;             // others that have or had bytes of the span, the last first; at most kMostSame
};

inline constexpr std::int64_t kMostGap = 4096;
inline constexpr std::size_t kMostSame = 3;

// Around bytes [begin, end) of the storage, just before the op `at` began. Of storages that the trace saw before that
// op, or that were there before the step. Nothing where the address is not known. Pure; any thread.
std::optional<Around> memory_around(const record::Trace& trace, record::StorageId storage, std::int64_t begin,
                                    std::int64_t end, record::OpId at);

}  // namespace finitude::locate
