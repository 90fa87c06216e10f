// The C interface of cuda_scan.h on CUDA: memory, streams and errors. What is computed is in multi_scan.h.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

#include "sense/cuda_list_cuda.h"

namespace multi = finitude::sense::multi;
using multi::BesideCapture;
using multi::fail;
using multi::is_capturing;
using multi::kEntryBytes;
using multi::OnDevice;
using multi::Staging;

namespace {

thread_local char open_why[160] = "";

// What comes next on `stream` comes after what the list did on another.
int follow(finitude_cuda_list* list, cudaStream_t stream, bool capturing) {
  if (list->launched && list->last_stream != stream && !capturing) {
    FINITUDE_TRY(list, cudaStreamWaitEvent(stream, list->done, 0));
  }
  return FINITUDE_CUDA_OK;
}

int record(finitude_cuda_list* list, cudaStream_t stream, bool capturing) {
  if (capturing) return FINITUDE_CUDA_OK;
  list->last_stream = stream;
  list->launched = true;
  FINITUDE_TRY(list, cudaEventRecord(list->done, stream));
  return FINITUDE_CUDA_OK;
}

void free_table(finitude_cuda_list* list) {
  cudaFree(list->table);
  cudaFree(list->parts);
  cudaFree(list->arrivals);
  cudaFree(list->rows);
  list->table = nullptr;
  list->parts = nullptr;
  list->arrivals = nullptr;
  list->rows = nullptr;
  for (Staging& staging : list->stagings) {
    cudaFreeHost(staging.bytes);
    staging.bytes = nullptr;
    staging.used = false;
  }
}

int grow(finitude_cuda_list* list, std::uint32_t tensors, std::uint32_t chunks) {
  const BesideCapture beside;
  if (list->launched) FINITUDE_TRY(list, cudaEventSynchronize(list->done));
  FINITUDE_TRY(list, cudaStreamSynchronize(list->copies));
  for (const Staging& staging : list->stagings) {
    if (staging.used) FINITUDE_TRY(list, cudaEventSynchronize(staging.copied));
  }
  free_table(list);
  list->tensor_room = list->chunk_room = 0;
  list->tickets.forget_rows();
  const std::uint32_t tensor_room = 2 * tensors + 64, chunk_room = 2 * chunks + 64;
  const std::size_t row_bytes = std::size_t{tensor_room} * sizeof(finitude_cuda_health) * multi::Tickets::kRows;
  const std::size_t table =
      std::size_t{tensor_room} * sizeof(multi::Item) + std::size_t{chunk_room} * sizeof(std::uint32_t);
  FINITUDE_TRY(list, cudaMalloc(reinterpret_cast<void**>(&list->table), table));
  FINITUDE_TRY(list, cudaMalloc(reinterpret_cast<void**>(&list->parts), chunk_room * sizeof(multi::Tally)));
  FINITUDE_TRY(list, cudaMalloc(reinterpret_cast<void**>(&list->arrivals), tensor_room * sizeof(std::uint32_t)));
  FINITUDE_TRY(list, cudaMalloc(reinterpret_cast<void**>(&list->rows), row_bytes));
  FINITUDE_TRY(list, cudaMemsetAsync(list->arrivals, 0, tensor_room * sizeof(std::uint32_t), list->copies));
  FINITUDE_TRY(list, cudaMemsetAsync(list->rows, 0, row_bytes, list->copies));
  FINITUDE_TRY(list, cudaStreamSynchronize(list->copies));
  for (Staging& staging : list->stagings) {
    FINITUDE_TRY(list, cudaHostAlloc(reinterpret_cast<void**>(&staging.bytes), table, cudaHostAllocPortable));
  }
  list->tensor_room = tensor_room;
  list->chunk_room = chunk_room;
  return FINITUDE_CUDA_OK;
}

int upload(finitude_cuda_list* list, bool owners_too, cudaStream_t stream) {
  Staging& staging = list->stagings[list->next_staging];
  list->next_staging = (list->next_staging + 1) % multi::kStagings;
  // Only where the host is kStagings uploads ahead of the device.
  if (staging.used) {
    const BesideCapture beside;
    FINITUDE_TRY(list, cudaEventSynchronize(staging.copied));
  }
  const std::size_t items = list->plan.items().size() * sizeof(multi::Item);
  const std::size_t owners = list->plan.owners().size() * sizeof(std::uint32_t);
  std::memcpy(staging.bytes, list->plan.items().data(), items);
  if (owners_too) std::memcpy(staging.bytes + list->items_bytes(), list->plan.owners().data(), owners);
  if (items != 0)
    FINITUDE_TRY(list, cudaMemcpyAsync(list->table, staging.bytes, items, cudaMemcpyHostToDevice, stream));
  if (owners_too && owners != 0) {
    FINITUDE_TRY(list, cudaMemcpyAsync(list->table + list->items_bytes(), staging.bytes + list->items_bytes(), owners,
                                       cudaMemcpyHostToDevice, stream));
  }
  FINITUDE_TRY(list, cudaEventRecord(staging.copied, stream));
  staging.used = true;
  return FINITUDE_CUDA_OK;
}

multi::Target target_of(finitude_cuda_list* list, const multi::Tickets::Place& place) {
  multi::Target target = {};
  target.entry = reinterpret_cast<finitude_cuda_summary*>(list->ring_device + place.slot * kEntryBytes);
  target.ticket = place.ticket;
  target.state = list->state;
  target.captured = place.captured ? place.slot - FINITUDE_CUDA_RING : multi::kNone;
  return target;
}

int open_list(finitude_cuda_list* list) {
  constexpr std::size_t kRing = multi::Tickets::kSlots * kEntryBytes;
  const OnDevice on(list->device);
  const BesideCapture beside;
  FINITUDE_TRY(list, multi::load_kernels());
  FINITUDE_TRY(list, cudaMalloc(reinterpret_cast<void**>(&list->state), sizeof(multi::State)));
  FINITUDE_TRY(
      list, cudaHostAlloc(reinterpret_cast<void**>(&list->ring), kRing, cudaHostAllocMapped | cudaHostAllocPortable));
  FINITUDE_TRY(list, cudaHostGetDevicePointer(reinterpret_cast<void**>(&list->ring_device), list->ring, 0));
  std::memset(list->ring, 0, kRing);
  FINITUDE_TRY(list, cudaEventCreateWithFlags(&list->done, cudaEventDisableTiming));
  for (Staging& staging : list->stagings)
    FINITUDE_TRY(list, cudaEventCreateWithFlags(&staging.copied, cudaEventDisableTiming));
  FINITUDE_TRY(list, cudaStreamCreateWithFlags(&list->copies, cudaStreamNonBlocking));
  FINITUDE_TRY(list, cudaMemsetAsync(list->state, 0, sizeof(multi::State), list->copies));
  FINITUDE_TRY(list, cudaStreamSynchronize(list->copies));
  return FINITUDE_CUDA_OK;
}

// Copies an entry if it is that of `ticket` and whole.
int read_entry(const finitude_cuda_list* list, std::uint32_t slot, std::uint64_t ticket,
               finitude_cuda_summary* summary) {
  const volatile finitude_cuda_summary* entry = list->entry(slot);
  for (int attempt = 0; attempt < 4; ++attempt) {
    if (entry->ticket != ticket) continue;
    std::atomic_thread_fence(std::memory_order_acquire);
    finitude_cuda_summary copy;
    copy.ticket = ticket;
    copy.nan = entry->nan;
    copy.pos_inf = entry->pos_inf;
    copy.neg_inf = entry->neg_inf;
    copy.absmax = entry->absmax;
    copy.sum_sq = entry->sum_sq;
    copy.value = entry->value;
    copy.bad_tensors = entry->bad_tensors;
    copy.first_bad = entry->first_bad;
    copy.skipped = entry->skipped;
    copy.runs = entry->runs;
    copy.found_inf_before = entry->found_inf_before;
    copy.noted_bad = entry->noted_bad;
    std::atomic_thread_fence(std::memory_order_acquire);
    if (entry->ticket != ticket || entry->runs != copy.runs) continue;  // a replay is writing it again
    *summary = copy;
    return FINITUDE_CUDA_OK;
  }
  return FINITUDE_CUDA_NOT_READY;
}

}  // namespace

#define FINITUDE_EXPORT extern "C" __attribute__((visibility("default")))

FINITUDE_EXPORT uint32_t finitude_cuda_abi(void) { return FINITUDE_CUDA_ABI; }

FINITUDE_EXPORT int finitude_cuda_open(int device, finitude_cuda_list** out) {
  open_why[0] = 0;
  if (out == nullptr || device < 0) return FINITUDE_CUDA_INVALID;
  *out = nullptr;
  auto* list = new (std::nothrow) finitude_cuda_list();
  if (list == nullptr) return FINITUDE_CUDA_INVALID;
  list->device = device;
  const int status = open_list(list);
  if (status != FINITUDE_CUDA_OK) {
    std::memcpy(open_why, list->why, sizeof open_why);
    finitude_cuda_close(list);
    return status;
  }
  *out = list;
  return FINITUDE_CUDA_OK;
}

FINITUDE_EXPORT void finitude_cuda_close(finitude_cuda_list* list) {
  if (list == nullptr) return;
  {
    const OnDevice on(list->device);
    const BesideCapture beside;
    if (list->launched) cudaEventSynchronize(list->done);
    multi::free_ahead(list);
    free_table(list);
    cudaFree(list->state);
    cudaFreeHost(list->ring);
    if (list->done != nullptr) cudaEventDestroy(list->done);
    for (Staging& staging : list->stagings) {
      if (staging.copied != nullptr) cudaEventDestroy(staging.copied);
    }
    if (list->copies != nullptr) cudaStreamDestroy(list->copies);
    cudaGetLastError();
  }
  delete list;
}

FINITUDE_EXPORT int finitude_cuda_set(finitude_cuda_list* list, const finitude_cuda_tensor* tensors, uint32_t count,
                                      void* stream) {
  if (list == nullptr || (tensors == nullptr && count != 0)) return FINITUDE_CUDA_INVALID;
  const auto s = static_cast<cudaStream_t>(stream);
  if (list->plan.is_same(tensors, count)) return FINITUDE_CUDA_OK;
  const OnDevice on(list->device);
  if (is_capturing(s)) return FINITUDE_CUDA_CAPTURE;
  multi::Plan next;
  multi::Plan::Change change;
  try {
    next = list->plan;
    change = next.update(tensors, count);
  } catch (const std::bad_alloc&) {
    std::snprintf(list->why, sizeof list->why, "out of host memory for a table of %u tensors", count);
    return FINITUDE_CUDA_DEVICE;
  }
  if (change == multi::Plan::Change::kInvalid) return FINITUDE_CUDA_INVALID;
  const bool outgrown = next.tensors() > list->tensor_room || next.chunks() > list->chunk_room;
  if (outgrown && list->tickets.has_captured()) return FINITUDE_CUDA_CAPTURE;
  list->plan = std::move(next);
  const bool owners_too = outgrown || change == multi::Plan::Change::kAll;
  int status = outgrown ? grow(list, list->plan.tensors(), list->plan.chunks()) : FINITUDE_CUDA_OK;
  if (status == FINITUDE_CUDA_OK) status = follow(list, s, false);
  if (status == FINITUDE_CUDA_OK) status = upload(list, owners_too, s);
  if (status == FINITUDE_CUDA_OK) status = record(list, s, false);
  if (status != FINITUDE_CUDA_OK) list->plan = {};  // the device's table is not this one
  return status;
}

FINITUDE_EXPORT int finitude_cuda_scan(finitude_cuda_list* list, void* stream, const finitude_cuda_options* options,
                                       uint64_t* ticket) {
  if (list == nullptr || ticket == nullptr) return FINITUDE_CUDA_INVALID;
  const auto s = static_cast<cudaStream_t>(stream);
  multi::Item gate = {};
  if (options != nullptr && options->unless_finite.data != nullptr) {
    if (!multi::make_item(options->unless_finite, &gate) || gate.format == multi::kFormats || gate.bytes == 0)
      return FINITUDE_CUDA_INVALID;
  }
  const OnDevice on(list->device);
  const bool capturing = is_capturing(s);
  if (list->table == nullptr && list->plan.tensors() != 0) return FINITUDE_CUDA_INVALID;
  const bool with_ahead = list->plan.slots() != 0;
  if (with_ahead && list->plan.slots() > list->ahead.slots) return FINITUDE_CUDA_INVALID;
  if (with_ahead && capturing) return FINITUDE_CUDA_CAPTURE;  // a graph cannot wait for what is done outside of it
  if (const int status = follow(list, s, capturing); status != FINITUDE_CUDA_OK) return status;
  if (with_ahead) FINITUDE_TRY(list, cudaStreamWaitEvent(s, list->ahead.done, 0));
  const multi::Tickets::Place place = list->tickets.next(true, capturing);
  if (place.ticket == 0) return FINITUDE_CUDA_CAPTURE;

  multi::ScanParameters parameters = {};
  parameters.items = reinterpret_cast<const multi::Item*>(list->table);
  parameters.owners = reinterpret_cast<const std::uint32_t*>(list->table + list->items_bytes());
  parameters.parts = list->parts;
  parameters.arrivals = list->arrivals;
  parameters.row = list->rows + std::size_t{place.row} * list->tensor_room;
  parameters.tensors = list->plan.tensors();
  parameters.chunks = list->plan.chunks();
  parameters.filled = list->plan.filled();
  parameters.ahead = list->ahead.rows;
  parameters.gate = gate.address;
  parameters.gate_format = gate.format;
  parameters.target = target_of(list, place);
  if (options != nullptr) {
    parameters.target.found_inf = options->found_inf;
    parameters.target.keep_larger = options->keep_larger;
    parameters.target.count_noted = options->count_noted;
    parameters.target.clear_noted = options->clear_noted;
  }
  FINITUDE_TRY(list, multi::launch_scan(parameters, s));
  *ticket = place.ticket;
  const int status = record(list, s, capturing);
  // What is read ahead next writes to the slots that this scan reads.
  if (with_ahead && status == FINITUDE_CUDA_OK)
    FINITUDE_TRY(list, cudaStreamWaitEvent(list->ahead.side, list->done, 0));
  return status;
}

FINITUDE_EXPORT int finitude_cuda_scan_value(finitude_cuda_list* list, void* stream, const finitude_cuda_tensor* tensor,
                                             uint64_t* ticket) {
  multi::Item item = {};
  if (list == nullptr || tensor == nullptr || ticket == nullptr || !multi::make_item(*tensor, &item))
    return FINITUDE_CUDA_INVALID;
  const auto s = static_cast<cudaStream_t>(stream);
  const OnDevice on(list->device);
  const bool capturing = is_capturing(s);
  if (const int status = follow(list, s, capturing); status != FINITUDE_CUDA_OK) return status;
  const multi::Tickets::Place place = list->tickets.next(false, capturing);
  if (place.ticket == 0) return FINITUDE_CUDA_CAPTURE;
  FINITUDE_TRY(list, multi::launch_value(item, target_of(list, place), s));
  *ticket = place.ticket;
  return record(list, s, capturing);
}

FINITUDE_EXPORT int finitude_cuda_found_inf(finitude_cuda_list* list, void* stream, float* found_inf,
                                            uint32_t keep_larger, uint32_t count_noted) {
  if (list == nullptr) return FINITUDE_CUDA_INVALID;
  const auto s = static_cast<cudaStream_t>(stream);
  const OnDevice on(list->device);
  const bool capturing = is_capturing(s);
  if (const int status = follow(list, s, capturing); status != FINITUDE_CUDA_OK) return status;
  multi::Target target = {};
  target.state = list->state;
  target.found_inf = found_inf;
  target.keep_larger = keep_larger;
  target.count_noted = count_noted;
  FINITUDE_TRY(list, multi::launch_found_inf(target, s));
  return record(list, s, capturing);
}

FINITUDE_EXPORT int finitude_cuda_poll(finitude_cuda_list* list, uint64_t ticket, finitude_cuda_summary* summary) {
  if (list == nullptr || summary == nullptr) return FINITUDE_CUDA_INVALID;
  const std::uint32_t slot = list->tickets.slot_of(ticket);
  return slot == multi::kNone ? FINITUDE_CUDA_LOST : read_entry(list, slot, ticket, summary);
}

FINITUDE_EXPORT int finitude_cuda_wait(finitude_cuda_list* list, uint64_t ticket, finitude_cuda_summary* summary) {
  int status = finitude_cuda_poll(list, ticket, summary);
  if (status != FINITUDE_CUDA_NOT_READY || !list->launched) return status;
  const OnDevice on(list->device);
  const BesideCapture beside;
  FINITUDE_TRY(list, cudaEventSynchronize(list->done));
  return finitude_cuda_poll(list, ticket, summary);
}

FINITUDE_EXPORT int finitude_cuda_query(finitude_cuda_list* list) {
  if (list == nullptr) return FINITUDE_CUDA_INVALID;
  if (!list->launched) return FINITUDE_CUDA_OK;
  const OnDevice on(list->device);
  const BesideCapture beside;
  const cudaError_t error = cudaEventQuery(list->done);
  if (error == cudaSuccess) return FINITUDE_CUDA_OK;
  if (error != cudaErrorNotReady) return fail(list->why, "cudaEventQuery", error);
  cudaGetLastError();
  return FINITUDE_CUDA_NOT_READY;
}

FINITUDE_EXPORT int finitude_cuda_fetch(finitude_cuda_list* list, uint64_t ticket, finitude_cuda_health* health,
                                        uint32_t count) {
  if (list == nullptr || (health == nullptr && count != 0)) return FINITUDE_CUDA_INVALID;
  finitude_cuda_summary summary;
  if (const int status = finitude_cuda_poll(list, ticket, &summary); status != FINITUDE_CUDA_OK) return status;
  const std::uint32_t row = list->tickets.row_of(ticket);
  if (row == multi::kNone || count > list->tensor_room) return FINITUDE_CUDA_LOST;
  if (summary.skipped != 0) {
    std::memset(health, 0, count * sizeof *health);
    return FINITUDE_CUDA_OK;
  }
  if (count == 0) return FINITUDE_CUDA_OK;
  const OnDevice on(list->device);
  const BesideCapture beside;
  FINITUDE_TRY(list, cudaMemcpyAsync(health, list->rows + std::size_t{row} * list->tensor_room, count * sizeof *health,
                                     cudaMemcpyDeviceToHost, list->copies));
  FINITUDE_TRY(list, cudaStreamSynchronize(list->copies));
  return FINITUDE_CUDA_OK;
}

FINITUDE_EXPORT int finitude_cuda_capturing(int device, void* stream) {
  const OnDevice on(device);
  return is_capturing(static_cast<cudaStream_t>(stream)) ? 1 : 0;
}

FINITUDE_EXPORT const char* finitude_cuda_why(const finitude_cuda_list* list) {
  return list == nullptr ? open_why : list->why;
}
