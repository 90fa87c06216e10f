// The facts of an open window, put together for decide::judge.
#pragma once

#include <vector>

#include "decide/window.h"
#include "gate/state_torch.h"

namespace finitude::bindings {

// Which backward of its window the loss was given to; 0 while the first is under way.
std::uint32_t micro_batch_of(const LossNote& note) noexcept;
// Is this loss one of the window, and does the optimizer own a gradient below it?
bool in_window(const OptimizerEntry& entry, const LossNote& note) noexcept;
bool owns(OptimizerEntry& entry, const LossNote& note);
// Was a gradient of this optimizer bad right after its backward?
bool was_bad_at(const OptimizerEntry& entry, const LossNote& note) noexcept;

// GIL held. `buffers_turned_nan`: a persistent buffer holds a NaN that was not there when the window began.
decide::Verdict verdict_of(OptimizerEntry& entry, bool buffers_turned_nan);

}  // namespace finitude::bindings
