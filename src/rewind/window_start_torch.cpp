#include "rewind/window_start_torch.h"

#include <algorithm>
#include <utility>

#include "base/immortal.h"
#include "gate/second_run.h"
#include "observe/first_forward_torch.h"
#include "rewind/loader_torch.h"
#include "rewind/optimizer_undo_torch.h"
#include "rewind/stack_torch.h"

namespace finitude::bindings {
namespace {

// One per optimizer, as another may step before it does again. The last to be taken comes first.
struct Starts {
  std::vector<std::unique_ptr<WindowStart>> list;
  BufferSnapshot buffers;       // what is watched; also the copies as long as there is no start
  bool at_batch = false;        // they are those of when a loader gave a batch, or a first graph was begun
  bool is_coming = false;       // a first step has been seen: nothing more is looked at before it
  std::uint64_t backwards = 0;  // that had begun by then
};

base::Immortal<Starts> the_starts;
Starts& starts() { return *the_starts; }

constexpr std::size_t kMaxStarts = 8;     // where each parameter has an optimizer there are hundreds
constexpr std::size_t kMaxBatches = 128;  // that a start may make the log of batches hold on to
constexpr std::size_t kMaxBatchBytes = 64u << 20;

WindowStart& start_for(OptimizerEntry& entry) {
  auto& list = starts().list;
  auto at = std::find_if(list.begin(), list.end(), [&](const auto& start) { return start->entry == &entry; });
  if (at == list.end() && list.size() < kMaxStarts && !in_backward()) {
    list.push_back(std::make_unique<WindowStart>());
    list.back()->buffers = starts().buffers;
    at = list.end() - 1;
  } else if (at == list.end() && list.empty()) {
    list.push_back(std::make_unique<WindowStart>());
    list.back()->buffers = starts().buffers;
    at = list.begin();
  } else if (at == list.end()) {
    at = list.end() - 1;  // that of the one that has not stepped for the longest
  }
  std::rotate(list.begin(), at, at + 1);
  list.front()->entry = &entry;
  return *list.front();
}

// From where on batches are needed. Starts that hold on to too many of them are given up, to bound memory.
std::size_t oldest_batch() {
  auto& list = starts().list;
  const std::size_t now = loader_log().position();
  std::size_t oldest = list.front()->batches;
  for (std::size_t i = list.size(); i-- > 1;) {
    WindowStart& start = *list[i];
    if (!start.taken) continue;
    if (now - start.batches > kMaxBatches || (start.batches < now && loader_log().size_bytes() > kMaxBatchBytes)) {
      start.taken = false;
      start.stack.clear();
    } else {
      oldest = std::min(oldest, start.batches);
    }
  }
  return oldest;
}

// A program without an optimizer: each of its windows begins where an engine call has returned.
OptimizerEntry& nobody() {
  static OptimizerEntry* entry = new OptimizerEntry();
  return *entry;
}

// No step has shown yet how the window of the first one began: its first batch does. One with a backward before it is a
// further micro-batch of the same step.
void first_batch_given() {
  Starts& s = starts();
  if (s.at_batch && s.backwards != live().backward_serial) return;
  s.buffers.take();
  s.at_batch = true;
  s.backwards = live().backward_serial;
}

}  // namespace

WindowStart* start_of(const OptimizerEntry* entry) {
  for (const auto& start : starts().list) {
    if (start->entry == entry) return start.get();
  }
  return nullptr;
}

const WindowStart* last_start() {
  const auto& list = starts().list;
  return list.empty() || !list.front()->taken ? nullptr : list.front().get();
}

const WindowStart* start_by_hand() { return start_of(&nobody()); }
bool any_start() { return !starts().list.empty(); }

BufferSnapshot& buffer_snapshot() {
  return last_start() != nullptr ? starts().list.front()->buffers : starts().buffers;
}

bool buffer_turned_nan() { return buffer_snapshot().turned_nan(); }

void put_buffers_back() {
  if (last_start() == nullptr) return starts().buffers.restore();
  WindowStart& start = *starts().list.front();
  (start.has_batch ? *start.at_batch : start.buffers).restore();
  start.unbuilt = next_node();
}

void batch_given() {
  if (second_run_under_way()) return;
  if (last_start() == nullptr) return first_batch_given();
  WindowStart& start = *starts().list.front();
  if (start.unbuilt != next_node()) return;  // what a forward pass writes is not the program's own
  start.has_batch = start.buffers.written_since();
  if (!start.has_batch) return;
  if (start.at_batch == nullptr) start.at_batch = std::make_unique<BufferSnapshot>(start.buffers);
  start.at_batch->take();
}

void watch_buffers(const std::vector<at::Tensor>& buffers) {
  starts().buffers.watch(buffers);
  for (const auto& start : starts().list) {
    start->buffers.watch(buffers);
    if (start->at_batch != nullptr) start->at_batch->watch(buffers);
  }
  if (last_start() != nullptr || starts().at_batch) return;
  starts().buffers.take();
  if (!starts().is_coming) observe::first_forward_begins(starts().buffers);
}

std::vector<at::Tensor> window_buffers() { return buffer_snapshot().watched(); }

void first_step_is_ahead() {
  if (last_start() == nullptr) starts().at_batch = starts().is_coming = false;
}

void first_step_comes(std::uint64_t node) {
  Starts& s = starts();
  s.is_coming = true;
  auto found = observe::first_forward_over(node);
  if (!found || last_start() != nullptr || s.at_batch) return;
  static_cast<observe::BufferSnapshot&>(s.buffers) = std::move(*found);
  s.at_batch = true;
  s.backwards = live().backward_serial;
}

void forget_window_start() {
  starts().buffers = buffer_snapshot();
  starts().list.clear();
  starts().at_batch = starts().is_coming = false;
  observe::first_forward_over();
  forget_jumps();
}

void forget_window_start_of(const OptimizerEntry& entry) {
  if (last_start() != nullptr && last_start()->entry == &entry) starts().buffers = buffer_snapshot();
  std::erase_if(starts().list, [&](const auto& start) { return start->entry == &entry; });
  forget_jump_of(entry);
}

bool open_window(OpenWindow* window) noexcept {
  const WindowStart* start = last_start();
  if (start != nullptr) *window = {&start->rng, &start->buffers, start->batches, start->loss};
  return start != nullptr;
}

std::size_t batches_before(const OptimizerEntry& entry) noexcept {
  const WindowStart* const own = start_of(&entry);
  const WindowStart* const start = own != nullptr && own->taken ? own : last_start();
  return start != nullptr ? start->batches : 0;
}

void snapshot_window(OptimizerEntry& entry) {
  if (!live().keeps_window_start || second_run_under_way()) return;
  WindowStart& start = start_for(entry);
  take_rng(&start.rng);
  start.buffers.take();
  start.has_batch = false;
  start.unbuilt = next_node();
  start.batches = loader_log().position();
  // Also if the stack is refused: generators and buffers of the start are needed for the veto.
  start.stack_problem = stack_take(&start.stack);
  if (PyErr_Occurred() == nullptr && stream_met()) watch_new_stream(&start.rng);
  start.serial = applied_serial();
  start.left_out = left_out_serial();
  start.windows = live().windows_closed;
  start.node = next_node();
  start.loss = live().next_serial;
  start.taken = true;
  // Last: it drops batches, whose destructors may run code of the program.
  loader_log().begin_window(oldest_batch());
}

void snapshot_window_by_hand() { snapshot_window(nobody()); }
void forget_window_by_hand() { forget_window_start_of(nobody()); }

}  // namespace finitude::bindings
