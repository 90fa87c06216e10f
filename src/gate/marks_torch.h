// What is known of gradients that were found bad, while they stand. GIL held.
#pragma once

#include "gate/state_torch.h"

namespace finitude::bindings {

// judge() of the gradient of parameter `index`, into its mark: what an alarm said of a gradient stays said while it
// stays bad, also where a backward has added to it since, or where a skipped step gave it back. False: its
// values cannot be read here.
bool judge_again(OptimizerEntry& entry, std::size_t index, const at::Tensor& gradient, bool after_backward);
// After a look at the gradients: since when some are bad, and, where the last loss is bad itself, whose are.
void note_bad_marks(OptimizerEntry& entry, bool loss_is_bad);

// Bad gradients of this optimizer are gone, as where a program zeroes those that the loss of another part of the model
// left here: do those that came with them still stand at another optimizer? Then its step is the one to be judged.
bool stands_elsewhere(const OptimizerEntry& entry);
// The same of one loss.
bool stands_elsewhere(const OptimizerEntry& entry, const LossNote& note);

// The program takes the memory of a tensor by .data or numpy(): what it writes there leaves the version as it is. A
// gradient that was seen to be clean is read again before its step. GIL held.
void gradient_escapes(const at::Tensor& tensor) noexcept;

}  // namespace finitude::bindings
