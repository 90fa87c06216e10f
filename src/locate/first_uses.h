// What each storage of a trace held before the trace wrote it, and when it came into use.
#pragma once

#include <cstdint>
#include <vector>

#include "locate/op_kinds.h"
#include "locate/timeline.h"
#include "record/trace.h"

namespace finitude::locate {

// Of one storage. Moments are those of the timeline; kNone: never.
struct FirstUse {
  // The largest bad use before the first write: a slice says less. Owned by the trace.
  const record::TensorUse* before = nullptr;
  Kinds before_kinds = 0;  // of all bad uses before the first write
  std::uint32_t first_write = record::kNone;
  std::uint32_t first_seen = record::kNone;
  std::uint32_t made_empty = record::kNone;  // it was handed out without any bytes yet, to be resized by a kernel
  bool seen_forward = false;
  bool in_product = false;  // bad values in it, or in a copy of it, are multiplied and added up
};

// By storage. `has_children`, by op: do others run inside of it?
std::vector<FirstUse> first_uses(const record::Trace& trace, const Timeline& timeline,
                                 const std::vector<bool>& has_children);

// Does the trace know the storage, and is the use more than an empty part of it?
inline bool lies_in_storage(const record::TensorUse& use, const record::Trace& trace) noexcept {
  return use.storage < trace.storages.size() && use.begin < use.end;
}

}  // namespace finitude::locate
