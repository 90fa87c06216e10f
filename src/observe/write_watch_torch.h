// Does any operator write the memory of some tensors? For a moment after a rare event: what is written through
// `Tensor.data` moves no version counter, and zeros that are added leave the same bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace finitude::observe {

// From now on, on all threads, until `writes_seen`. Keeps no reference. One watch at a time: a new one replaces it.
void watch_writes(const std::vector<at::Tensor>& tensors);
// Ends the watch. Was one of them written, whole or in part? False where none was under way.
bool writes_seen();

}  // namespace finitude::observe
