// The kernels of a scan of many tensors, as the host starts them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "finitude/cuda_scan.h"
#include "sense/multi_scan.h"

namespace finitude::sense::multi {

// Device memory of a list that outlives a scan. Zero at the start.
struct State {
  std::uint32_t finished;                      // tensors of the scan under way; zero again when it ends
  std::uint32_t last_bad;                      // was a tensor of the last scan bad
  std::uint32_t noted_bad;                     // was a value bad that was noted since the notes were last cleared
  std::uint32_t runs[FINITUDE_CUDA_CAPTURED];  // of each scan in a graph
};

// Where a scan's summary goes, and what it does to the optimizer's flag.
struct Target {
  finitude_cuda_summary* entry;  // pinned host memory, by its device address
  std::uint64_t ticket;
  State* state;
  std::uint32_t captured;  // index into State::runs, or kNone
  std::uint32_t keep_larger, count_noted, clear_noted;
  float* found_inf;
};

struct ScanParameters {
  const Item* items;
  const std::uint32_t* owners;
  Tally* parts;               // one per chunk
  std::uint32_t* arrivals;    // one per tensor: chunks done; zero again when the tensor is
  finitude_cuda_health* row;  // one per tensor
  std::uint32_t tensors, chunks, filled;
  const finitude_cuda_health* ahead;  // one per slot: what was read ahead
  std::uint32_t gate_format;          // of the real at `gate`
  std::uint64_t gate;                 // 0: none
  Target target;
};

// Of a launch that reads ahead. All that a kernel may be given on every device: 4 KB.
struct AheadParameters {
  Tally* parts;                // one per chunk
  std::uint32_t* arrivals;     // one per item: chunks done; zero again when the item is
  finitude_cuda_health* rows;  // one per slot
  std::uint32_t count, chunks;
  Item items[FINITUDE_CUDA_AHEAD];
};
static_assert(sizeof(AheadParameters) <= 4096);

// Puts the kernels on the current device, which may wait for it; else the first launch does. Fails where none is built
// for it.
cudaError_t load_kernels();
cudaError_t launch_scan(const ScanParameters& parameters, cudaStream_t stream);
cudaError_t launch_ahead(const AheadParameters& parameters, cudaStream_t stream);
cudaError_t launch_value(const Item& item, const Target& target, cudaStream_t stream);
cudaError_t launch_found_inf(const Target& target, cudaStream_t stream);

}  // namespace finitude::sense::multi
