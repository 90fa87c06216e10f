// Many tensors scanned in one launch: which block, thread and vector reads which bytes, what it makes of them, and in
// which order the parts are put together. Written once for the device (CUDA) and for the host, where the loops over
// blocks and threads are run one after another and compared with the reference (multi_scan_test.cpp). Nothing here
// allocates.
//
// A tensor is cut into chunks at 16-byte aligned addresses; one block of kThreads reads a chunk: first the few elements
// before the first and after the last whole vector (at most 30), then the vectors, kUnroll of them in flight per
// thread.
#pragma once

#include <cstdint>

#include "sense/multi_values.h"

namespace finitude::sense::multi {

inline constexpr std::uint32_t kThreads = 256;
inline constexpr std::uint32_t kWarp = 32;
inline constexpr std::uint32_t kChunkBytes = 64 * 1024;  // a multiple of the vector
inline constexpr std::uint32_t kNone = 0xffffffffu;

// A tensor as the device sees it.
struct Item {
  std::uint64_t address;
  std::uint64_t bytes;
  std::uint32_t first_chunk;  // its chunks are first_chunk .. first_chunk + chunks - 1
  std::uint32_t chunks;
  std::uint32_t format;
  std::uint32_t slot;  // kNone; of a tensor that was read ahead: where its result is, or goes
};

// ---- where ------------------------------------------------------------------------------------------------

FINITUDE_HD std::uint64_t chunks_of(std::uint64_t address, std::uint64_t bytes) {
  return bytes == 0 ? 0 : (address % kVectorBytes + bytes + kChunkBytes - 1) / kChunkBytes;
}

// The bytes of one chunk: [begin, body) and [tail, end) are single elements, [body, tail) are whole aligned vectors.
struct Split {
  std::uint64_t begin, body, tail, end;
};

// `index`: of the chunk within its tensor.
FINITUDE_HD Split split_of(const Item& item, std::uint64_t index) {
  const std::uint64_t origin = item.address - item.address % kVectorBytes;
  const std::uint64_t last = item.address + item.bytes;
  Split split;
  split.begin = index == 0 ? item.address : origin + index * kChunkBytes;
  split.end = origin + (index + 1) * kChunkBytes;
  if (split.end > last) split.end = last;
  split.body = (split.begin + kVectorBytes - 1) / kVectorBytes * kVectorBytes;
  if (split.body > split.end) split.body = split.end;
  split.tail = split.end / kVectorBytes * kVectorBytes;
  if (split.tail < split.body) split.tail = split.body;
  return split;
}

// Of all tensors of a scan.
struct Roll {
  Tally tally;
  std::uint32_t bad = 0;
  std::uint32_t first_bad = kNone;
};

FINITUDE_HD void merge(Roll& into, const Roll& other) {
  merge(into.tally, other.tally);
  into.bad += other.bad;
  if (other.first_bad < into.first_bad) into.first_bad = other.first_bad;
}

// The item of a block, of items in the order of their chunks, none of them empty.
FINITUDE_HD std::uint32_t owner_of(const Item* items, std::uint32_t count, std::uint32_t block) {
  std::uint32_t low = 0;
  while (count > 1) {  // the last one that begins at or before the block is among items[low .. low + count)
    const std::uint32_t half = count / 2;
    if (items[low + half].first_chunk <= block) {
      low += half;
      count -= half;
    } else {
      count = half;
    }
  }
  return low;
}

// What one thread of a block reads of a chunk.
template <std::uint32_t kFormat>
FINITUDE_HD void take_chunk(Tally& tally, const Split& split, std::uint32_t thread) {
  constexpr std::uint64_t kItem = layout_of(kFormat).bits / 8;
  const std::uint64_t before = (split.body - split.begin) / kItem, after = (split.end - split.tail) / kItem;
  if (thread < before) {
    take_code<kFormat>(tally, load_code<kFormat>(split.begin + thread * kItem));
  } else if (thread < before + after) {
    take_code<kFormat>(tally, load_code<kFormat>(split.tail + (thread - before) * kItem));
  }
  const auto vectors = static_cast<std::uint32_t>((split.tail - split.body) / kVectorBytes);
  for (std::uint32_t base = thread; base < vectors; base += kThreads * kUnroll) {
    Vector v[kUnroll];
    FINITUDE_UNROLL
    for (std::uint32_t u = 0; u < kUnroll; ++u) {
      const std::uint32_t index = base + u * kThreads;
      v[u] = index < vectors ? load_vector(split.body + std::uint64_t{index} * kVectorBytes) : Vector{{0, 0, 0, 0}};
    }
    // One comparison finds whether all are finite; only where not is each element looked at, in the same order.
    const std::uint64_t top = top_rank<kFormat>(v);
    if (top < layout_of(kFormat).first_non_finite()) {
      take_finite<kFormat>(tally, v, top);
      continue;
    }
    for (std::uint32_t index = base; index < vectors && index < base + kThreads * kUnroll; index += kThreads) {
      const std::uint64_t at = split.body + std::uint64_t{index} * kVectorBytes;
      for (std::uint64_t i = 0; i < kVectorBytes; i += kItem) take_code<kFormat>(tally, load_code<kFormat>(at + i));
    }
  }
}

FINITUDE_HD void take_chunk(Tally& tally, std::uint32_t format, const Split& split, std::uint32_t thread) {
  switch (format) {
    case kF64:
      take_chunk<kF64>(tally, split, thread);
      break;
    case kF32:
      take_chunk<kF32>(tally, split, thread);
      break;
    case kF16:
      take_chunk<kF16>(tally, split, thread);
      break;
    case kBF16:
      take_chunk<kBF16>(tally, split, thread);
      break;
    case kE4M3FN:
      take_chunk<kE4M3FN>(tally, split, thread);
      break;
    case kE4M3FNUZ:
      take_chunk<kE4M3FNUZ>(tally, split, thread);
      break;
    case kE5M2:
      take_chunk<kE5M2>(tally, split, thread);
      break;
    case kE5M2FNUZ:
      take_chunk<kE5M2FNUZ>(tally, split, thread);
      break;
    default:
      break;
  }
}

// ---- in which order ---------------------------------------------------------------------------------------
// A block folds its threads' parts by halves within each warp, then the warps' parts by halves; the device does the
// same by shuffles. Lane i takes in lane i + offset as it was before the round.

// On the host: `part` holds kThreads of T and is used up.
template <typename T>
T fold_block(T* part) {
  T warp[kThreads / kWarp];
  for (std::uint32_t w = 0; w < kThreads / kWarp; ++w) {
    T* lane = part + w * kWarp;
    for (std::uint32_t offset = kWarp / 2; offset != 0; offset /= 2) {
      for (std::uint32_t i = 0; i < offset; ++i) merge(lane[i], lane[i + offset]);
    }
    warp[w] = lane[0];
  }
  for (std::uint32_t offset = kThreads / kWarp / 2; offset != 0; offset /= 2) {
    for (std::uint32_t i = 0; i < offset; ++i) merge(warp[i], warp[i + offset]);
  }
  return warp[0];
}

// What one thread takes in of the chunks' tallies of a tensor, and of the tensors' tallies of a scan.
template <typename Load>
FINITUDE_HD Tally take_chunks(std::uint32_t thread, std::uint32_t chunks, Load load) {
  Tally tally;
  for (std::uint32_t i = thread; i < chunks; i += kThreads) merge(tally, load(i));
  return tally;
}

template <typename Load>
FINITUDE_HD Roll take_tensors(std::uint32_t thread, std::uint32_t count, Load load) {
  Roll roll;
  for (std::uint32_t i = thread; i < count; i += kThreads) {
    Roll one;
    one.tally = load(i);
    one.bad = is_bad(one.tally) ? 1 : 0;
    one.first_bad = one.bad != 0 ? i : kNone;
    merge(roll, one);
  }
  return roll;
}

// ---- the flag of the optimizer ----------------------------------------------------------------------------

// What `found_inf` becomes. A value larger than 1 that is there (a sum over devices) stays: it is not ours.
FINITUDE_HD float found_inf_after(float before, bool bad, bool keep_larger) {
  const float ours = bad ? 1.0f : 0.0f;
  return keep_larger && before > ours ? before : ours;
}

}  // namespace finitude::sense::multi
