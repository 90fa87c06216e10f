// The arithmetic of multi_scan.h on the device. What is added here: the fold of a block by shuffles, and how blocks
// agree on who is the last one of a tensor and of the scan. No floating-point atomics: sums are taken in the order of
// the indices.
#include "sense/multi_scan_cuda.h"

namespace finitude::sense::multi {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;

__device__ void shift(Tally& tally, unsigned offset) {
  tally.sum_sq = __shfl_down_sync(kAllLanes, tally.sum_sq, offset);
  const auto word = [offset](std::uint64_t value) -> std::uint64_t {
    return __shfl_down_sync(kAllLanes, static_cast<unsigned long long>(value), offset);
  };
  tally.absmax = word(tally.absmax);
  tally.nan = word(tally.nan);
  tally.pos_inf = word(tally.pos_inf);
  tally.neg_inf = word(tally.neg_inf);
}

__device__ void shift(Roll& roll, unsigned offset) {
  shift(roll.tally, offset);
  roll.bad = __shfl_down_sync(kAllLanes, roll.bad, offset);
  roll.first_bad = __shfl_down_sync(kAllLanes, roll.first_bad, offset);
}

// Shared memory takes no constructor.
template <typename T>
struct PerWarp {
  alignas(T) unsigned char bytes[sizeof(T) * (kThreads / kWarp)];
};

// The fold of multi_scan.h. All threads of the block take part; the result is that of thread 0. `space` is free for the
// next use after a barrier.
template <typename T>
__device__ T fold(T mine, PerWarp<T>& space) {
  T* shared = reinterpret_cast<T*>(space.bytes);
#pragma unroll
  for (unsigned offset = kWarp / 2; offset != 0; offset /= 2) {
    T other = mine;
    shift(other, offset);
    merge(mine, other);
  }
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = mine;
  __syncthreads();
  if (threadIdx.x < kWarp) {
    constexpr unsigned kWarps = kThreads / kWarp;
    mine = shared[threadIdx.x % kWarps];
#pragma unroll
    for (unsigned offset = kWarps / 2; offset != 0; offset /= 2) {
      T other = mine;
      shift(other, offset);
      merge(mine, other);
    }
  }
  return mine;
}

// Past the L1 cache, which may hold what the memory was before another block wrote it.
__device__ std::uint64_t fresh(const std::uint64_t* at) {
  return __ldcg(reinterpret_cast<const unsigned long long*>(at));
}

__device__ Tally fresh(const Tally* at) {
  Tally tally;
  tally.sum_sq = __ldcg(&at->sum_sq);
  tally.absmax = fresh(&at->absmax);
  tally.nan = fresh(&at->nan);
  tally.pos_inf = fresh(&at->pos_inf);
  tally.neg_inf = fresh(&at->neg_inf);
  return tally;
}

__device__ Tally fresh(const finitude_cuda_health* at) {
  Tally tally;
  tally.sum_sq = __ldcg(&at->sum_sq);
  tally.absmax = bits_of(__ldcg(&at->absmax));
  tally.nan = fresh(&at->nan);
  tally.pos_inf = fresh(&at->pos_inf);
  tally.neg_inf = fresh(&at->neg_inf);
  return tally;
}

__device__ void store(finitude_cuda_health* at, const Tally& tally) {
  at->nan = tally.nan;
  at->pos_inf = tally.pos_inf;
  at->neg_inf = tally.neg_inf;
  at->absmax = double_of(tally.absmax);
  at->sum_sq = tally.sum_sq;
}

// One thread. The summary is written while its ticket says that it is not valid; the host looks at the ticket before
// and after it reads the rest.
__device__ void publish(const Target& target, finitude_cuda_summary summary, bool is_value) {
  State& state = *target.state;
  const bool bad = summary.bad_tensors != 0;
  if (is_value) {
    if (bad) state.noted_bad = 1;
  } else {
    state.last_bad = bad ? 1 : 0;
  }
  const bool noted = state.noted_bad != 0;
  summary.noted_bad = noted ? 1 : 0;
  if (target.found_inf != nullptr) {
    summary.found_inf_before = *target.found_inf;
    *target.found_inf =
        found_inf_after(summary.found_inf_before, bad || (target.count_noted != 0 && noted), target.keep_larger != 0);
  }
  if (target.clear_noted != 0) state.noted_bad = 0;
  summary.runs = target.captured == kNone ? 1 : ++state.runs[target.captured];

  volatile finitude_cuda_summary* entry = target.entry;
  entry->ticket = 0;
  __threadfence_system();
  entry->nan = summary.nan;
  entry->pos_inf = summary.pos_inf;
  entry->neg_inf = summary.neg_inf;
  entry->absmax = summary.absmax;
  entry->sum_sq = summary.sum_sq;
  entry->value = summary.value;
  entry->bad_tensors = summary.bad_tensors;
  entry->first_bad = summary.first_bad;
  entry->skipped = summary.skipped;
  entry->runs = summary.runs;
  entry->found_inf_before = summary.found_inf_before;
  entry->noted_bad = summary.noted_bad;
  __threadfence_system();
  entry->ticket = target.ticket;
}

__device__ finitude_cuda_summary summary_of(const Tally& tally) {
  finitude_cuda_summary summary = {};
  summary.nan = tally.nan;
  summary.pos_inf = tally.pos_inf;
  summary.neg_inf = tally.neg_inf;
  summary.absmax = double_of(tally.absmax);
  summary.sum_sq = tally.sum_sq;
  return summary;
}

// Counts this block in, after what it wrote. True in all threads of the last of `expected` blocks, which then sees what
// the others wrote; the counter is zero again. `last` is shared.
__device__ bool arrive_last(std::uint32_t* counter, std::uint32_t expected, bool* last) {
  if (threadIdx.x == 0) {
    __threadfence();
    *last = atomicInc(counter, expected - 1) == expected - 1;
  }
  __syncthreads();
  if (!*last) return false;
  __threadfence();
  return true;
}

// Reads this block's chunk of `item`. True in all threads of the block that has the whole tensor then: in thread 0,
// `*tally` is its.
__device__ bool read_chunk(const Item& item, std::uint32_t block, Tally* part_of_block, std::uint32_t* arrivals,
                           PerWarp<Tally>& tallies, bool* last_chunk, Tally* tally) {
  take_chunk(*tally, item.format, split_of(item, block - item.first_chunk), threadIdx.x);
  *tally = fold(*tally, tallies);
  if (item.chunks == 1) return true;
  if (threadIdx.x == 0) *part_of_block = *tally;
  if (!arrive_last(arrivals, item.chunks, last_chunk)) return false;
  const Tally* parts = part_of_block - (block - item.first_chunk);
  *tally = take_chunks(threadIdx.x, item.chunks, [parts](std::uint32_t i) { return fresh(&parts[i]); });
  *tally = fold(*tally, tallies);  // the barrier in arrive_last has freed `tallies`
  return true;
}

__global__ void __launch_bounds__(kThreads, 4) ahead_kernel(const __grid_constant__ AheadParameters p) {
  __shared__ PerWarp<Tally> tallies;
  __shared__ bool last_chunk;
  const std::uint32_t owner = owner_of(p.items, p.count, blockIdx.x);
  const Item item = p.items[owner];
  Tally tally;
  if (!read_chunk(item, blockIdx.x, &p.parts[blockIdx.x], &p.arrivals[owner], tallies, &last_chunk, &tally)) return;
  if (threadIdx.x == 0) store(&p.rows[item.slot], tally);
}

__global__ void __launch_bounds__(kThreads, 4) scan_kernel(const __grid_constant__ ScanParameters p) {
  __shared__ PerWarp<Tally> tallies;
  __shared__ PerWarp<Roll> rolls;
  __shared__ bool last_chunk, last_tensor;

  if (p.gate != 0) {  // the same answer in every block: nothing writes that value meanwhile
    const std::uint64_t code = load_any(p.gate, p.gate_format);
    if (is_finite_code(code, p.gate_format)) {
      if (blockIdx.x == 0 && threadIdx.x == 0) {
        finitude_cuda_summary summary = {};
        summary.absmax = fabs(value_any(code, p.gate_format));
        summary.skipped = 1;
        publish(p.target, summary, false);
      }
      return;
    }
  }
  if (p.chunks != 0) {
    const std::uint32_t owner = p.owners[blockIdx.x];
    const Item item = p.items[owner];
    Tally tally;
    if (!read_chunk(item, blockIdx.x, &p.parts[blockIdx.x], &p.arrivals[owner], tallies, &last_chunk, &tally)) return;
    if (threadIdx.x == 0) store(&p.row[owner], tally);
    if (!arrive_last(&p.target.state->finished, p.filled, &last_tensor)) return;
  }
  // The last block of all: the tensors together, in their order. Empty ones have a row too, and those that were read
  // ahead.
  Roll roll = take_tensors(threadIdx.x, p.tensors, [&p](std::uint32_t i) {
    if (p.items[i].chunks != 0) return fresh(&p.row[i]);
    const Tally tally = p.items[i].slot == kNone ? Tally{} : fresh(&p.ahead[p.items[i].slot]);
    store(&p.row[i], tally);
    return tally;
  });
  roll = fold(roll, rolls);
  if (threadIdx.x == 0) {
    finitude_cuda_summary summary = summary_of(roll.tally);
    summary.bad_tensors = roll.bad;
    summary.first_bad = roll.first_bad;
    publish(p.target, summary, false);
  }
}

__global__ void __launch_bounds__(kThreads)
    value_kernel(const __grid_constant__ Item item, const __grid_constant__ Target target) {
  __shared__ PerWarp<Tally> tallies;
  Tally tally;
  for (std::uint32_t chunk = 0; chunk < item.chunks; ++chunk)
    take_chunk(tally, item.format, split_of(item, chunk), threadIdx.x);
  tally = fold(tally, tallies);
  if (threadIdx.x == 0) {
    finitude_cuda_summary summary = summary_of(tally);
    summary.bad_tensors = is_bad(tally) ? 1 : 0;
    summary.value = item.chunks != 0 ? value_any(load_any(item.address, item.format), item.format) : 0;
    publish(target, summary, true);
  }
}

__global__ void found_inf_kernel(const __grid_constant__ Target target) {
  State& state = *target.state;
  const bool bad = state.last_bad != 0 || (target.count_noted != 0 && state.noted_bad != 0);
  if (target.found_inf != nullptr) *target.found_inf = found_inf_after(*target.found_inf, bad, target.keep_larger != 0);
  state.noted_bad = 0;
}

}  // namespace

cudaError_t load_kernels() {
  cudaFuncAttributes ignored;
  cudaError_t error = cudaFuncGetAttributes(&ignored, scan_kernel);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&ignored, ahead_kernel);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&ignored, value_kernel);
  return error == cudaSuccess ? cudaFuncGetAttributes(&ignored, found_inf_kernel) : error;
}

cudaError_t launch_scan(const ScanParameters& parameters, cudaStream_t stream) {
  scan_kernel<<<parameters.chunks == 0 ? 1 : parameters.chunks, kThreads, 0, stream>>>(parameters);
  return cudaGetLastError();
}

cudaError_t launch_ahead(const AheadParameters& parameters, cudaStream_t stream) {
  ahead_kernel<<<parameters.chunks, kThreads, 0, stream>>>(parameters);
  return cudaGetLastError();
}

cudaError_t launch_value(const Item& item, const Target& target, cudaStream_t stream) {
  value_kernel<<<1, kThreads, 0, stream>>>(item, target);
  return cudaGetLastError();
}

cudaError_t launch_found_inf(const Target& target, cudaStream_t stream) {
  found_inf_kernel<<<1, 1, 0, stream>>>(target);
  return cudaGetLastError();
}

}  // namespace finitude::sense::multi
