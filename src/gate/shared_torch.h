// One backward writes gradients of several optimizers: what an alarm at one of them means for the others, and what a
// second run of its window leaves alone of theirs. GIL held.
#pragma once

#include "gate/live_torch.h"

namespace finitude::bindings {

// judge() of the gradient of parameter `index`, into its mark: what an alarm said of a gradient stays said while it
// stays bad, also where a backward has added to it since, or where a step that was left out gave it back. False: its
// values cannot be read here.
bool judge_again(OptimizerEntry& entry, std::size_t index, const at::Tensor& gradient, bool after_backward);
// After a look at the gradients: since when some are bad, and, where the last loss is bad itself, whose are.
void note_bad_marks(OptimizerEntry& entry, bool loss_is_bad);

// Bad gradients of this optimizer are gone, as where a program zeroes those that the loss of another part of the model
// left here: do those that came with them still stand at another optimizer? Then its step is the one to be judged.
bool stands_elsewhere(const OptimizerEntry& entry);
// The same of one loss.
bool stands_elsewhere(const OptimizerEntry& entry, const LossNote& note);

// An alarm (its number, from 1) tells of this optimizer's window: its bad gradients, and those of the same backward at
// others, are known.
void tell_others(OptimizerEntry& entry, std::uint32_t number);

// Before the window of one optimizer runs again: what is known of the windows of all others. After it: as it was, but
// not where the second run ended elsewhere (`is_back`), since the program goes on from there then.
void set_windows_aside(const OptimizerEntry* own);
void put_windows_back(bool is_back);
// A bad loss in it that only other optimizers' parameters lie below: it is theirs to explain.
bool is_elsewhere(const LossNote& note);

PyMethodDef* shared_methods();

}  // namespace finitude::bindings
