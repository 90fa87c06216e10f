// The starts of windows, one for each optimizer, kept so that a window can be run a second time and a veto puts back
// what it has to. All with the GIL held.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gate/state_torch.h"
#include "rewind/frames_python.h"
#include "rewind/snapshot_torch.h"

namespace finitude::bindings {

// Where a window began: when an optimizer's step returned.
struct WindowStart {
  OptimizerEntry* entry = nullptr;  // whose step it was
  RngState rng;
  BufferSnapshot buffers;
  // As they were when the last batch was fetched before the step built a graph, where the program had written some of
  // them since.
  std::unique_ptr<BufferSnapshot> at_batch;
  bool has_batch = false;     // at_batch is of this window
  std::uint64_t unbuilt = 0;  // the next autograd node, as long as no graph was built
  StackSnapshot stack;
  std::string stack_problem;   // why `stack` was not taken
  std::size_t batches = 0;     // position in the loader log
  std::uint64_t node = 0;      // the first autograd node after it
  std::uint64_t loss = 0;      // the last loss noted before it
  std::uint64_t serial = 0;    // of the step that ended the window before
  std::uint64_t left_out = 0;  // steps that had not been applied by then
  std::uint64_t windows = 0;   // of any optimizer, that were closed by then
  bool taken = false;
};

// Taken right before an optimizer applies a good step: the state the next window starts from.
void snapshot_window(OptimizerEntry& entry);
// The same where an engine call of a program without an optimizer has returned; and the program has come to have one.
void snapshot_window_by_hand();
void forget_window_by_hand();

void forget_window_start();
void forget_window_start_of(const OptimizerEntry& entry);

// Null: nothing is kept. Valid until an optimizer steps or a start is forgotten.
WindowStart* start_of(const OptimizerEntry* entry);  // the optimizer's own last one, also if it was given up (`taken`)
const WindowStart* last_start();                     // of the window that is open, whoever's it is
const WindowStart* start_by_hand();                  // of a program without an optimizer
bool any_start();

// Where the window that is open began, whoever's it is. Valid until the next one begins.
struct OpenWindow {
  const RngState* rng = nullptr;
  const BufferSnapshot* buffers = nullptr;
  std::size_t batches = 0;  // position in the loader log
  std::uint64_t loss = 0;   // the last loss that was noted before it
};
// False where nothing is kept of it.
bool open_window(OpenWindow* window) noexcept;
// Position in the loader log where the window of that optimizer began; 0: it is its first one.
std::size_t batches_before(const OptimizerEntry& entry) noexcept;

// The copies at the start of the window that began last, whoever's it is.
BufferSnapshot& buffer_snapshot();
// Does one of them hold a NaN now that it did not hold then?
bool buffer_turned_nan();
// Buffers as at the start of that window, or with what the program itself had written into them by the time that a
// loader gave the batch.
void put_buffers_back();
void watch_buffers(const std::vector<at::Tensor>& buffers);
// Those of which there is a copy of how they were when the open window began: a rewind puts them back.
std::vector<at::Tensor> window_buffers();
// An optimizer was made: what came before is no part of its first step.
void first_step_is_ahead();
// The first step is about to be judged. `node`: where its graph began, unless backward has gone through it.
void first_step_comes(std::uint64_t node = UINT64_MAX);
// A loader has given a batch: if no graph was built in this window yet, that step begins with the buffers that there
// are now.
void batch_given();

}  // namespace finitude::bindings
