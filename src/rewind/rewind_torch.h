// The start of the window that is open, kept so that the window can be run a second time.
#pragma once

#include "gate/state_torch.h"
#include "rewind/snapshot_torch.h"

namespace finitude::bindings {

// Taken right before an optimizer applies a good step: the state the next window starts from.
void snapshot_window(OptimizerEntry& entry);
// The same where an engine call of a program without an optimizer has returned; and the program has come to have one.
void snapshot_window_by_hand();
void forget_window_by_hand();

void forget_window_start();
void forget_window_start_of(const OptimizerEntry& entry);
PyMethodDef* rewind_methods();
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
void watch_buffers(const std::vector<at::Tensor>& buffers);
// An optimizer was made: what came before is no part of its first step.
void first_step_is_ahead();
// The first step is about to be judged. `node`: where its graph began, unless backward has gone through it.
void first_step_comes(std::uint64_t node = UINT64_MAX);
// A loader has given a batch: if no graph was built in this window yet, that step begins with the buffers that there
// are now.
void batch_given();

}  // namespace finitude::bindings
