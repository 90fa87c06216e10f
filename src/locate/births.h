// From events to births: kind, node, rows, path, and the select that hid a value.
#pragma once

#include <vector>

#include "locate/birth.h"
#include "locate/search.h"

namespace finitude::locate {

// `sink`: kNone where it reached none.
Birth describe(const record::Trace& trace, const Flow& flow, EventId event, std::uint32_t sink);

// When it counts as executed: its op, or the caller that first read the values.
std::uint32_t when(const Flow& flow, EventId event);

// The ops after `event` on the way to where the search started, in order of execution.
std::vector<record::OpId> path_from(const Flow& flow, const Search& search, EventId event);

// At most 64 ops, without repeats side by side; what is too much goes from the middle.
std::vector<record::OpId> shorten(std::vector<record::OpId> path);

// The op that read values stemming from `event` and gave a finite result, before moment `until`: the first
// select, else the first of any kind; kNone if there is none.
record::OpId find_absorber(const record::Trace& trace, const Flow& flow, EventId event, std::uint32_t until);

}  // namespace finitude::locate
