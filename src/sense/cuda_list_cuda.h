// What the files of the C interface share: a list as it is on CUDA, and how calls are made and fail.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdio>
#include <cstring>

#include "sense/multi_scan_cuda.h"
#include "sense/multi_scan_plan.h"

namespace finitude::sense::multi {

inline constexpr std::uint32_t kStagings = 8;    // uploads that may be under way at once
inline constexpr std::size_t kEntryBytes = 128;  // of a summary in the ring: no two share a cache line
static_assert(sizeof(finitude_cuda_summary) <= kEntryBytes);

struct Staging {
  char* bytes = nullptr;  // pinned
  cudaEvent_t copied = nullptr;
  bool used = false;
};

// What reading ahead needs; nothing else touches it but where a comment says so, since another thread may be at it.
struct Ahead {
  Tally* parts = nullptr;  // on the device
  std::uint32_t* arrivals = nullptr;
  finitude_cuda_health* rows = nullptr;
  std::uint32_t slots = 0;
  std::uint64_t chunks = 0;
  cudaStream_t side = nullptr;
  cudaEvent_t given = nullptr;  // after what the caller's stream was given before a call
  cudaEvent_t done = nullptr;   // after the last launch; scans wait for it
  std::atomic<bool> launched = false;
};

}  // namespace finitude::sense::multi

struct finitude_cuda_list {
  int device = 0;
  finitude::sense::multi::Plan plan;
  finitude::sense::multi::Tickets tickets;

  // On the device. `table` holds the items, then the owners.
  char* table = nullptr;
  finitude::sense::multi::Tally* parts = nullptr;
  std::uint32_t* arrivals = nullptr;
  finitude_cuda_health* rows = nullptr;
  finitude::sense::multi::State* state = nullptr;
  std::uint32_t tensor_room = 0, chunk_room = 0;

  finitude::sense::multi::Staging stagings[finitude::sense::multi::kStagings];
  std::uint32_t next_staging = 0;
  char* ring = nullptr;         // pinned, as the host sees it
  char* ring_device = nullptr;  // and the device
  cudaEvent_t done = nullptr;   // after the last launch outside a graph
  cudaStream_t last_stream = nullptr;
  bool launched = false;
  cudaStream_t copies = nullptr;
  finitude::sense::multi::Ahead ahead;
  char why[160] = "";

  std::size_t items_bytes() const { return std::size_t{tensor_room} * sizeof(finitude::sense::multi::Item); }
  std::size_t table_bytes() const { return items_bytes() + std::size_t{chunk_room} * sizeof(std::uint32_t); }
  const volatile finitude_cuda_summary* entry(std::uint32_t slot) const {
    return reinterpret_cast<const volatile finitude_cuda_summary*>(ring + slot * finitude::sense::multi::kEntryBytes);
  }
};

namespace finitude::sense::multi {

inline int fail(char (&why)[160], const char* what, cudaError_t error) {
  const int name = static_cast<int>(std::strcspn(what, "("));  // of the call, without its arguments
  std::snprintf(why, sizeof why, "%.*s: %s", name, what, cudaGetErrorString(error));
  cudaGetLastError();  // this library's own copy of it; the caller's runtime keeps its own
  return FINITUDE_CUDA_DEVICE;
}

#define FINITUDE_TRY(list, call)                                         \
  do {                                                                   \
    if (const cudaError_t error_ = (call); error_ != cudaSuccess)        \
      return ::finitude::sense::multi::fail((list)->why, #call, error_); \
  } while (0)

// Makes a device current, and the one before it again at the end. The common case, one device, costs one call.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    if (cudaGetDevice(&before_) != cudaSuccess) before_ = device;
    if (before_ != device) changed_ = cudaSetDevice(device) == cudaSuccess;
  }
  ~OnDevice() {
    if (changed_) cudaSetDevice(before_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

// What allocates or waits, and asks after events, on this thread does not spoil a capture that another stream is in.
class BesideCapture {
 public:
  BesideCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~BesideCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  BesideCapture(const BesideCapture&) = delete;
  BesideCapture& operator=(const BesideCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

inline bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (const cudaError_t error = cudaStreamIsCapturing(stream, &status); error != cudaSuccess) {
    cudaGetLastError();
    return error ==
           cudaErrorStreamCaptureImplicit;  // the legacy stream while another is captured: it may not be used either
  }
  return status != cudaStreamCaptureStatusNone;
}

// Waits for what was read ahead, and frees what that needs.
void free_ahead(finitude_cuda_list* list);

}  // namespace finitude::sense::multi
