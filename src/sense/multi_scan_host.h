// The launches of multi_scan_cuda.cu as loops on the host: blocks one after another, in any order, threads within them
// one after another. Same functions, same order of sums, so equal bits come out. For tests.
#pragma once

#include <cmath>
#include <span>
#include <vector>

#include "sense/multi_scan_plan.h"

namespace finitude::sense::multi {

// What a list keeps between scans on the device.
struct HostMemory {
  std::vector<Tally> parts;
  std::vector<std::uint32_t> arrivals;
  std::uint32_t finished = 0;
};

// atomicInc of CUDA: counts up to `limit`, then begins at zero again. Returns what was there.
inline std::uint32_t count_in(std::uint32_t& counter, std::uint32_t limit) {
  const std::uint32_t before = counter;
  counter = before >= limit ? 0 : before + 1;
  return before;
}

inline finitude_cuda_health health_of(const Tally& tally) {
  return {tally.nan, tally.pos_inf, tally.neg_inf, double_of(tally.absmax), tally.sum_sq};
}

inline Tally tally_of(const finitude_cuda_health& health) {
  Tally tally;
  tally.nan = health.nan;
  tally.pos_inf = health.pos_inf;
  tally.neg_inf = health.neg_inf;
  tally.absmax = bits_of(health.absmax);
  tally.sum_sq = health.sum_sq;
  return tally;
}

// Reads a block's chunk of `item`. True where that made the tensor whole: `*tally` is its then.
inline bool read_chunk(const Item& item, std::uint32_t block, Tally* part_of_first, std::uint32_t& arrivals,
                       Tally* tally) {
  Tally threads[kThreads];
  for (std::uint32_t t = 0; t < kThreads; ++t)
    take_chunk(threads[t], item.format, split_of(item, block - item.first_chunk), t);
  *tally = fold_block(threads);
  if (item.chunks == 1) return true;
  part_of_first[block] = *tally;
  if (count_in(arrivals, item.chunks - 1) != item.chunks - 1) return false;
  const Tally* parts = part_of_first + item.first_chunk;
  for (std::uint32_t t = 0; t < kThreads; ++t)
    threads[t] = take_chunks(t, item.chunks, [parts](std::uint32_t i) { return parts[i]; });
  *tally = fold_block(threads);
  return true;
}

// ahead_kernel, whole; `order` as below. Each tensor's row is written once: returns how often one was.
inline std::uint32_t run_ahead(const Item* items, std::uint32_t count, std::uint32_t chunks, HostMemory& memory,
                               finitude_cuda_health* rows, std::span<const std::uint32_t> order = {}) {
  memory.parts.resize(chunks);
  memory.arrivals.resize(count);
  std::uint32_t written = 0;
  for (std::uint32_t b = 0; b < chunks; ++b) {
    const std::uint32_t block = order.empty() ? b : order[b];
    const std::uint32_t owner = owner_of(items, count, block);
    Tally tally;
    if (!read_chunk(items[owner], block, memory.parts.data(), memory.arrivals[owner], &tally)) continue;
    rows[items[owner].slot] = health_of(tally);
    ++written;
  }
  return written;
}

// One block of scan_kernel. True, and `*roll` set, where it was the last one of all. `blocks` of them run.
inline bool run_block(std::uint32_t block, const Item* items, const std::uint32_t* owners, std::uint32_t tensors,
                      std::uint32_t chunks, std::uint32_t filled, HostMemory& memory, finitude_cuda_health* row,
                      Roll* roll, const finitude_cuda_health* ahead = nullptr) {
  if (chunks != 0) {
    const std::uint32_t owner = owners[block];
    Tally tally;
    if (!read_chunk(items[owner], block, memory.parts.data(), memory.arrivals[owner], &tally)) return false;
    row[owner] = health_of(tally);
    if (count_in(memory.finished, filled - 1) != filled - 1) return false;
  }
  Roll threads[kThreads];
  for (std::uint32_t t = 0; t < kThreads; ++t) {
    threads[t] = take_tensors(t, tensors, [&](std::uint32_t i) {
      if (items[i].chunks == 0) row[i] = items[i].slot == kNone ? health_of(Tally()) : ahead[items[i].slot];
      return tally_of(row[i]);
    });
  }
  *roll = fold_block(threads);
  return true;
}

// A whole launch; `order`: of the blocks, all of them or empty for 0, 1, 2 ... Returns how many blocks took themselves
// for the last.
inline int run_scan(const Plan& plan, HostMemory& memory, finitude_cuda_health* row, Roll* roll,
                    std::span<const std::uint32_t> order = {}, const finitude_cuda_health* ahead = nullptr) {
  memory.parts.resize(plan.chunks());
  memory.arrivals.resize(plan.tensors());
  const std::uint32_t blocks = plan.chunks() == 0 ? 1 : plan.chunks();
  int last = 0;
  for (std::uint32_t b = 0; b < blocks; ++b) {
    last += run_block(order.empty() ? b : order[b], plan.items().data(), plan.owners().data(), plan.tensors(),
                      plan.chunks(), plan.filled(), memory, row, roll, ahead);
  }
  return last;
}

// value_kernel.
inline Tally run_value(const Item& item) {
  Tally threads[kThreads];
  for (std::uint32_t chunk = 0; chunk < item.chunks; ++chunk) {
    for (std::uint32_t t = 0; t < kThreads; ++t) take_chunk(threads[t], item.format, split_of(item, chunk), t);
  }
  return fold_block(threads);
}

}  // namespace finitude::sense::multi
