// The C interface of cuda_scan.h without a GPU: the loops of multi_scan_host.h over host memory. Tests load it in the
// place of libfinitude_cuda, so that everything above that interface runs where there is no GPU. It computes at once,
// as a stream does in its own order; when the host gets to know of it is what a test decides (finitude_cuda_host_hold).
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "sense/multi_scan_host.h"

namespace multi = finitude::sense::multi;

// How far from where it is the memory is said to be: of tests/native/pretend_device.cpp, which has what nobody can
// read as it is.
#ifndef FINITUDE_HOST_FAR
#define FINITUDE_HOST_FAR 0
#endif

#define FINITUDE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Control {
  std::atomic<int> hold = 0;
  std::atomic<bool> lazy = false;  // what is to be read ahead is read when something waits for it, and no sooner
  std::atomic<std::uint64_t> aheads = 0, read_ahead = 0, joins = 0;
  bool capturing = false, failing = false;
  std::uint64_t tensors = 0;  // that scans read
  std::uint64_t scans = 0, values = 0, uploads = 0, waits = 0, fetches = 0, flags = 0, opened = 0;
};
Control control;
std::mutex delivery;  // of summaries to where the host sees them

template <typename T>
T* nearby(T* there) {
  return there == nullptr
             ? nullptr
             : reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(there) - std::uintptr_t{FINITUDE_HOST_FAR});
}

std::vector<finitude_cuda_tensor> nearby(const finitude_cuda_tensor* tensors, std::uint32_t count) {
  std::vector<finitude_cuda_tensor> found(tensors, tensors + count);
  for (finitude_cuda_tensor& tensor : found) tensor.data = nearby(tensor.data);
  return found;
}

}  // namespace

struct finitude_cuda_list {
  multi::Plan plan;
  multi::Tickets tickets;
  multi::HostMemory memory;
  std::vector<finitude_cuda_health> rows[multi::Tickets::kRows];
  finitude_cuda_summary ring[multi::Tickets::kSlots] = {};
  std::deque<std::pair<std::uint32_t, finitude_cuda_summary>> held;
  std::mutex beside;  // what is read ahead, by another thread
  struct Reading {
    std::vector<multi::Item> items;
    std::uint32_t chunks;
  };
  std::vector<Reading> readings;  // given, and not read yet
  std::vector<finitude_cuda_health> slots;
  std::uint64_t ahead_chunks = 0;
  multi::HostMemory ahead_memory;

  void read_ahead() {
    for (const Reading& reading : readings) {
      multi::run_ahead(reading.items.data(), static_cast<std::uint32_t>(reading.items.size()), reading.chunks,
                       ahead_memory, slots.data());
    }
    readings.clear();
  }
  bool last_bad = false, noted_bad = false;

  void deliver() {
    const std::lock_guard lock(delivery);
    for (const auto& [slot, summary] : held) ring[slot] = summary;
    held.clear();
  }
};

namespace {

std::deque<finitude_cuda_list*> lists;

void publish(finitude_cuda_list* list, const multi::Tickets::Place& place, finitude_cuda_summary summary,
             const finitude_cuda_options& options, bool is_value) {
  const bool bad = summary.bad_tensors != 0;
  if (is_value)
    list->noted_bad = list->noted_bad || bad;
  else
    list->last_bad = bad;
  summary.noted_bad = list->noted_bad;
  if (options.found_inf != nullptr) {
    summary.found_inf_before = *options.found_inf;
    *options.found_inf = multi::found_inf_after(
        *options.found_inf, bad || (options.count_noted != 0 && list->noted_bad), options.keep_larger != 0);
  }
  if (options.clear_noted != 0) list->noted_bad = false;
  summary.ticket = place.ticket;
  summary.runs = 1;
  {
    const std::lock_guard lock(delivery);
    list->held.emplace_back(place.slot, summary);
  }
  if (control.hold == 0) list->deliver();
}

finitude_cuda_summary summary_of(const multi::Tally& tally) {
  finitude_cuda_summary summary = {};
  summary.nan = tally.nan;
  summary.pos_inf = tally.pos_inf;
  summary.neg_inf = tally.neg_inf;
  summary.absmax = multi::double_of(tally.absmax);
  summary.sum_sq = tally.sum_sq;
  return summary;
}

}  // namespace

FINITUDE_EXPORT uint32_t finitude_cuda_abi(void) { return FINITUDE_CUDA_ABI; }

FINITUDE_EXPORT int finitude_cuda_open(int device, finitude_cuda_list** list) {
  if (list == nullptr || device < 0) return FINITUDE_CUDA_INVALID;
  if (control.failing) return FINITUDE_CUDA_DEVICE;
  ++control.opened;
  *list = new finitude_cuda_list();
  lists.push_back(*list);
  return FINITUDE_CUDA_OK;
}

FINITUDE_EXPORT void finitude_cuda_close(finitude_cuda_list* list) {
  std::erase(lists, list);
  delete list;
}

FINITUDE_EXPORT int finitude_cuda_set(finitude_cuda_list* list, const finitude_cuda_tensor* given, uint32_t count,
                                      void*) {
  if (list == nullptr || (given == nullptr && count != 0)) return FINITUDE_CUDA_INVALID;
  const std::vector<finitude_cuda_tensor> near = nearby(given, count);
  const finitude_cuda_tensor* tensors = near.data();
  if (list->plan.is_same(tensors, count)) return FINITUDE_CUDA_OK;
  if (control.failing) return FINITUDE_CUDA_DEVICE;
  if (control.capturing) return FINITUDE_CUDA_CAPTURE;
  if (list->plan.update(tensors, count) == multi::Plan::Change::kInvalid) return FINITUDE_CUDA_INVALID;
  ++control.uploads;
  if (list->rows[0].size() < count) {
    list->tickets.forget_rows();
    for (auto& row : list->rows) row.resize(2 * std::size_t{count});
  }
  return FINITUDE_CUDA_OK;
}

FINITUDE_EXPORT int finitude_cuda_scan(finitude_cuda_list* list, void*, const finitude_cuda_options* given,
                                       uint64_t* ticket) {
  if (list == nullptr || ticket == nullptr) return FINITUDE_CUDA_INVALID;
  finitude_cuda_options options = given != nullptr ? *given : finitude_cuda_options{};
  options.unless_finite.data = nearby(options.unless_finite.data);
  options.found_inf = nearby(options.found_inf);
  multi::Item gate = {};
  if (options.unless_finite.data != nullptr &&
      (!multi::make_item(options.unless_finite, &gate) || gate.format == multi::kFormats || gate.bytes == 0)) {
    return FINITUDE_CUDA_INVALID;
  }
  if (control.failing) return FINITUDE_CUDA_DEVICE;
  const std::lock_guard beside(list->beside);
  if (list->plan.slots() > list->slots.size()) return FINITUDE_CUDA_INVALID;
  if (list->plan.slots() != 0 && control.capturing) return FINITUDE_CUDA_CAPTURE;
  if (list->plan.slots() != 0) list->read_ahead();
  const multi::Tickets::Place place = list->tickets.next(true, control.capturing);
  if (place.ticket == 0) return FINITUDE_CUDA_CAPTURE;
  ++control.scans;
  *ticket = place.ticket;
  finitude_cuda_summary summary = {};
  const std::uint64_t code = gate.bytes != 0 ? multi::load_any(gate.address, gate.format) : 0;
  if (gate.bytes != 0 && multi::is_finite_code(code, gate.format)) {
    summary.absmax = std::fabs(multi::value_any(code, gate.format));
    summary.skipped = 1;
  } else {
    multi::Roll roll;
    multi::run_scan(list->plan, list->memory, list->rows[place.row].data(), &roll, {}, list->slots.data());
    for (const multi::Item& item : list->plan.items()) control.tensors += item.chunks != 0;
    summary = summary_of(roll.tally);
    summary.bad_tensors = roll.bad;
    summary.first_bad = roll.first_bad;
  }
  publish(list, place, summary, options, false);
  return FINITUDE_CUDA_OK;
}

FINITUDE_EXPORT int finitude_cuda_scan_value(finitude_cuda_list* list, void*, const finitude_cuda_tensor* tensor,
                                             uint64_t* ticket) {
  multi::Item item = {};
  if (list == nullptr || tensor == nullptr || ticket == nullptr || !multi::make_item(nearby(tensor, 1)[0], &item))
    return FINITUDE_CUDA_INVALID;
  if (control.failing) return FINITUDE_CUDA_DEVICE;
  const multi::Tickets::Place place = list->tickets.next(false, control.capturing);
  if (place.ticket == 0) return FINITUDE_CUDA_CAPTURE;
  ++control.values;
  *ticket = place.ticket;
  const multi::Tally tally = multi::run_value(item);
  finitude_cuda_summary summary = summary_of(tally);
  summary.bad_tensors = multi::is_bad(tally) ? 1 : 0;
  summary.value = item.chunks != 0 ? multi::value_any(multi::load_any(item.address, item.format), item.format) : 0;
  publish(list, place, summary, {}, true);
  return FINITUDE_CUDA_OK;
}

FINITUDE_EXPORT int finitude_cuda_found_inf(finitude_cuda_list* list, void*, float* found_inf, uint32_t keep_larger,
                                            uint32_t count_noted) {
  if (list == nullptr) return FINITUDE_CUDA_INVALID;
  if (control.failing) return FINITUDE_CUDA_DEVICE;
  ++control.flags;
  found_inf = nearby(found_inf);
  const bool bad = list->last_bad || (count_noted != 0 && list->noted_bad);
  if (found_inf != nullptr) *found_inf = multi::found_inf_after(*found_inf, bad, keep_larger != 0);
  list->noted_bad = false;
  return FINITUDE_CUDA_OK;
}

FINITUDE_EXPORT int finitude_cuda_reserve(finitude_cuda_list* list, uint32_t slots, uint64_t bytes) {
  if (list == nullptr) return FINITUDE_CUDA_INVALID;
  if (control.failing) return FINITUDE_CUDA_DEVICE;
  const std::lock_guard beside(list->beside);
  if (slots <= list->slots.size() && multi::chunks_ahead(bytes) <= list->ahead_chunks) return FINITUDE_CUDA_OK;
  list->read_ahead();
  list->slots.assign(2 * std::size_t{slots} + 64, {});
  list->ahead_chunks = multi::chunks_ahead(2 * bytes);
  return FINITUDE_CUDA_OK;
}

FINITUDE_EXPORT int finitude_cuda_ahead(finitude_cuda_list* list, const finitude_cuda_tensor* given, uint32_t count,
                                        void*) {
  if (list == nullptr || given == nullptr) return FINITUDE_CUDA_INVALID;
  const std::vector<finitude_cuda_tensor> near = nearby(given, count);
  const finitude_cuda_tensor* tensors = near.data();
  if (control.failing) return FINITUDE_CUDA_DEVICE;
  std::vector<multi::Item> items(FINITUDE_CUDA_AHEAD);
  const std::uint64_t chunks = multi::make_ahead(tensors, count, items.data());
  const std::lock_guard beside(list->beside);
  if (chunks == 0 || chunks > list->ahead_chunks) return FINITUDE_CUDA_INVALID;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (items[i].slot >= list->slots.size()) return FINITUDE_CUDA_INVALID;
  }
  if (control.capturing) return FINITUDE_CUDA_CAPTURE;
  ++control.aheads;
  control.read_ahead += count;
  items.resize(count);
  list->readings.push_back({std::move(items), static_cast<std::uint32_t>(chunks)});
  if (!control.lazy) list->read_ahead();
  return FINITUDE_CUDA_OK;
}

FINITUDE_EXPORT int finitude_cuda_join(finitude_cuda_list* list, void*) {
  if (list == nullptr) return FINITUDE_CUDA_INVALID;
  const std::lock_guard beside(list->beside);
  ++control.joins;
  list->read_ahead();
  return FINITUDE_CUDA_OK;
}

FINITUDE_EXPORT int finitude_cuda_passed(finitude_cuda_list* list) {
  if (list == nullptr) return FINITUDE_CUDA_INVALID;
  const std::lock_guard beside(list->beside);
  return list->readings.empty() ? FINITUDE_CUDA_OK : FINITUDE_CUDA_NOT_READY;
}

FINITUDE_EXPORT int finitude_cuda_poll(finitude_cuda_list* list, uint64_t ticket, finitude_cuda_summary* summary) {
  if (list == nullptr || summary == nullptr) return FINITUDE_CUDA_INVALID;
  const std::uint32_t slot = list->tickets.slot_of(ticket);
  if (slot == multi::kNone) return FINITUDE_CUDA_LOST;
  if (list->ring[slot].ticket != ticket) return FINITUDE_CUDA_NOT_READY;
  *summary = list->ring[slot];
  return FINITUDE_CUDA_OK;
}

FINITUDE_EXPORT int finitude_cuda_wait(finitude_cuda_list* list, uint64_t ticket, finitude_cuda_summary* summary) {
  const int status = finitude_cuda_poll(list, ticket, summary);
  if (status != FINITUDE_CUDA_NOT_READY) return status;
  ++control.waits;
  while (control.hold == 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  list->deliver();
  return finitude_cuda_poll(list, ticket, summary);
}

FINITUDE_EXPORT int finitude_cuda_query(finitude_cuda_list* list) {
  if (list == nullptr) return FINITUDE_CUDA_INVALID;
  if (control.failing) return FINITUDE_CUDA_DEVICE;
  if (list->held.empty()) return FINITUDE_CUDA_OK;
  if (control.hold != 2) list->deliver();  // it gets there between this question and the next
  return FINITUDE_CUDA_NOT_READY;
}

FINITUDE_EXPORT int finitude_cuda_fetch(finitude_cuda_list* list, uint64_t ticket, finitude_cuda_health* health,
                                        uint32_t count) {
  if (list == nullptr || (health == nullptr && count != 0)) return FINITUDE_CUDA_INVALID;
  finitude_cuda_summary summary;
  if (const int status = finitude_cuda_poll(list, ticket, &summary); status != FINITUDE_CUDA_OK) return status;
  const std::uint32_t row = list->tickets.row_of(ticket);
  if (row == multi::kNone || count > list->rows[row].size()) return FINITUDE_CUDA_LOST;
  ++control.fetches;
  for (std::uint32_t i = 0; i < count; ++i)
    health[i] = summary.skipped != 0 ? finitude_cuda_health{} : list->rows[row][i];
  return FINITUDE_CUDA_OK;
}

FINITUDE_EXPORT int finitude_cuda_capturing(int, void*) { return control.capturing ? 1 : 0; }

FINITUDE_EXPORT const char* finitude_cuda_why(const finitude_cuda_list*) {
  return control.failing ? "finitude_cuda_host: failure requested" : "";
}

// ---- for tests only ---------------------------------------------------------------------------------------

// While held (1), nothing reaches the host but by a wait, or once it has been asked for; letting go (0) delivers all.
// Hung (2): a wait ends when another thread ends that state.
FINITUDE_EXPORT void finitude_cuda_host_hold(int hold) {
  control.hold = hold;
  if (hold != 0) return;
  for (finitude_cuda_list* list : lists) list->deliver();
}
FINITUDE_EXPORT void finitude_cuda_host_capture(int capturing) { control.capturing = capturing != 0; }
FINITUDE_EXPORT void finitude_cuda_host_fail(int failing) { control.failing = failing != 0; }
FINITUDE_EXPORT void finitude_cuda_host_lazy(int lazy) { control.lazy = lazy != 0; }
// Calls that read ahead, tensors that they read, joins, tensors that scans read; since the last call.
FINITUDE_EXPORT void finitude_cuda_host_ahead(uint64_t counts[4]) {
  counts[0] = control.aheads.exchange(0);
  counts[1] = control.read_ahead.exchange(0);
  counts[2] = control.joins.exchange(0);
  counts[3] = std::exchange(control.tensors, 0);
}
// scans, values, uploads, waits, fetches, flags, lists opened; since the last call.
FINITUDE_EXPORT void finitude_cuda_host_counts(uint64_t counts[7]) {
  const std::uint64_t now[7] = {control.scans,   control.values, control.uploads, control.waits,
                                control.fetches, control.flags,  control.opened};
  std::memcpy(counts, now, sizeof now);
  control.scans = control.values = control.uploads = control.waits = control.fetches = control.flags = control.opened =
      0;
}
