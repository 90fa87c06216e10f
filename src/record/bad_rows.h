// How many rows that hold a NaN or Inf are listed of one tensor.
#pragma once

#include <cstddef>

#include "record/trace.h"

namespace finitude::record {

// Experiments compute with these rows, so that the list may not end before they do. But an operator that read
// NaN hands it on: of what it makes, kMaxBadRows are enough, and the many operators behind a birth take no
// memory for more.
inline constexpr std::size_t kMostBadRows = 65'536;

}  // namespace finitude::record
