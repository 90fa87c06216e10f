// Reading ahead, on CUDA: one launch per call on the list's side stream, ordered by two events and nothing else.
#include "sense/cuda_list_cuda.h"

namespace multi = finitude::sense::multi;
using multi::BesideCapture;
using multi::is_capturing;
using multi::OnDevice;

namespace finitude::sense::multi {

void free_ahead(finitude_cuda_list* list) {
  Ahead& ahead = list->ahead;
  if (ahead.launched) cudaEventSynchronize(ahead.done);
  cudaFree(ahead.parts);
  cudaFree(ahead.arrivals);
  cudaFree(ahead.rows);
  if (ahead.given != nullptr) cudaEventDestroy(ahead.given);
  if (ahead.done != nullptr) cudaEventDestroy(ahead.done);
  if (ahead.side != nullptr) cudaStreamDestroy(ahead.side);
  ahead.parts = nullptr;
  ahead.arrivals = nullptr;
  ahead.rows = nullptr;
  ahead.given = ahead.done = nullptr;
  ahead.side = nullptr;
  ahead.slots = 0;
  ahead.chunks = 0;
  ahead.launched = false;
}

}  // namespace finitude::sense::multi

#define FINITUDE_EXPORT extern "C" __attribute__((visibility("default")))

FINITUDE_EXPORT int finitude_cuda_reserve(finitude_cuda_list* list, uint32_t slots, uint64_t bytes) {
  if (list == nullptr) return FINITUDE_CUDA_INVALID;
  multi::Ahead& ahead = list->ahead;
  if (slots <= ahead.slots && multi::chunks_ahead(bytes) <= ahead.chunks) return FINITUDE_CUDA_OK;
  const OnDevice on(list->device);
  const BesideCapture beside;
  // A scan that is under way may read the slots.
  if (list->launched) FINITUDE_TRY(list, cudaEventSynchronize(list->done));
  const std::uint32_t slot_room = 2 * slots + 64;
  const std::uint64_t chunk_room = multi::chunks_ahead(2 * bytes);
  multi::free_ahead(list);
  // What is to be read has just been written: the sooner it is read, the more of it is found in the device's cache, and
  // the shorter its memory has to be kept. Not the legacy stream's business, which would make the two wait for each
  // other.
  int least = 0, greatest = 0;
  FINITUDE_TRY(list, cudaDeviceGetStreamPriorityRange(&least, &greatest));
  FINITUDE_TRY(list, cudaStreamCreateWithPriority(&ahead.side, cudaStreamNonBlocking, greatest));
  FINITUDE_TRY(list, cudaEventCreateWithFlags(&ahead.given, cudaEventDisableTiming));
  FINITUDE_TRY(list, cudaEventCreateWithFlags(&ahead.done, cudaEventDisableTiming));
  FINITUDE_TRY(list, cudaMalloc(reinterpret_cast<void**>(&ahead.parts), chunk_room * sizeof(multi::Tally)));
  FINITUDE_TRY(list,
               cudaMalloc(reinterpret_cast<void**>(&ahead.arrivals), FINITUDE_CUDA_AHEAD * sizeof(std::uint32_t)));
  FINITUDE_TRY(list, cudaMalloc(reinterpret_cast<void**>(&ahead.rows), slot_room * sizeof(finitude_cuda_health)));
  FINITUDE_TRY(list, cudaMemsetAsync(ahead.arrivals, 0, FINITUDE_CUDA_AHEAD * sizeof(std::uint32_t), list->copies));
  FINITUDE_TRY(list, cudaMemsetAsync(ahead.rows, 0, slot_room * sizeof(finitude_cuda_health), list->copies));
  FINITUDE_TRY(list, cudaStreamSynchronize(list->copies));
  FINITUDE_TRY(list, cudaEventRecord(ahead.done, ahead.side));  // a scan waits for it, also where nothing was read yet
  ahead.slots = slot_room;
  ahead.chunks = chunk_room;
  return FINITUDE_CUDA_OK;
}

FINITUDE_EXPORT int finitude_cuda_ahead(finitude_cuda_list* list, const finitude_cuda_tensor* tensors, uint32_t count,
                                        void* stream) {
  if (list == nullptr || tensors == nullptr) return FINITUDE_CUDA_INVALID;
  multi::Ahead& ahead = list->ahead;
  multi::AheadParameters parameters;
  const std::uint64_t chunks = multi::make_ahead(tensors, count, parameters.items);
  if (chunks == 0 || chunks > ahead.chunks) return FINITUDE_CUDA_INVALID;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (parameters.items[i].slot >= ahead.slots) return FINITUDE_CUDA_INVALID;
  }
  const auto s = static_cast<cudaStream_t>(stream);
  const OnDevice on(list->device);
  if (is_capturing(s)) return FINITUDE_CUDA_CAPTURE;
  parameters.parts = ahead.parts;
  parameters.arrivals = ahead.arrivals;
  parameters.rows = ahead.rows;
  parameters.count = count;
  parameters.chunks = static_cast<std::uint32_t>(chunks);
  // `why` belongs to the other thread; that the device has failed, its next call finds too.
  cudaError_t error = cudaEventRecord(ahead.given, s);
  if (error == cudaSuccess) error = cudaStreamWaitEvent(ahead.side, ahead.given, 0);
  if (error == cudaSuccess) error = multi::launch_ahead(parameters, ahead.side);
  if (error == cudaSuccess) error = cudaEventRecord(ahead.done, ahead.side);
  ahead.launched = true;
  if (error == cudaSuccess) return FINITUDE_CUDA_OK;
  cudaGetLastError();
  return FINITUDE_CUDA_DEVICE;
}

FINITUDE_EXPORT int finitude_cuda_join(finitude_cuda_list* list, void* stream) {
  if (list == nullptr) return FINITUDE_CUDA_INVALID;
  multi::Ahead& ahead = list->ahead;
  if (!ahead.launched) return FINITUDE_CUDA_OK;
  const auto s = static_cast<cudaStream_t>(stream);
  const OnDevice on(list->device);
  cudaError_t error;
  if (is_capturing(s)) {
    const BesideCapture beside;
    error = cudaEventSynchronize(ahead.done);
  } else {
    error = cudaStreamWaitEvent(s, ahead.done, 0);
  }
  if (error == cudaSuccess) return FINITUDE_CUDA_OK;
  cudaGetLastError();
  return FINITUDE_CUDA_DEVICE;
}

FINITUDE_EXPORT int finitude_cuda_passed(finitude_cuda_list* list) {
  if (list == nullptr) return FINITUDE_CUDA_INVALID;
  multi::Ahead& ahead = list->ahead;
  if (!ahead.launched) return FINITUDE_CUDA_OK;
  const OnDevice on(list->device);
  const BesideCapture beside;
  const cudaError_t error = cudaEventQuery(ahead.done);
  if (error == cudaSuccess) return FINITUDE_CUDA_OK;
  cudaGetLastError();
  return error == cudaErrorNotReady ? FINITUDE_CUDA_NOT_READY : FINITUDE_CUDA_DEVICE;
}
