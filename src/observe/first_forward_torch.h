// Buffers (running statistics) as the first step of a program begins. No step before it has reported how its window
// began, and what goes before, a calibration, an evaluation, may write buffers as well: they are copied where graphs
// begin, and backward says with which of these the step began. On while a program comes to its first step, and never
// again.
#pragma once

#include <cstdint>
#include <optional>

#include "observe/buffer_snapshot_torch.h"

namespace finitude::observe {

// `buffers` are looked at from now on, where none were, or together with those before. On the CPU. GIL held for this
// and the others.
void first_forward_begins(const BufferSnapshot& buffers);
// The step comes. The copies of when the graph began that backward went through, or whose first node is `node`; nothing
// where that is not known.
std::optional<BufferSnapshot> first_forward_over(std::uint64_t node = UINT64_MAX);

}  // namespace finitude::observe
