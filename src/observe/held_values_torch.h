// Values that an operator reads as they are now, whatever is written meanwhile. For a second run of code that writes
// them before it reads them, and has written them already in its first.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace finitude::observe {

// From now on, on all threads, until `release_values`: what operators or others have written to `tensors` is put back
// by an operator (aten::copy_) before another one reads it. `counted`: only how often they were written is remembered.
// On the CPU. To be called before the tracer and the recorder of a tape are started, which are to see that operator.
// One at a time.
void hold_values(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& counted);
// All of them have the values of then, and of all the counts of writes are those of then: a graph that was built before
// continues to its gradients.
void release_values();

}  // namespace finitude::observe
