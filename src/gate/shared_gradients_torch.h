// One backward writes gradients of several optimizers: what an alarm at one of them means for the others, and what a
// second run of its window leaves alone of theirs. GIL held.
#pragma once

#include "gate/state_torch.h"

namespace finitude::bindings {

// An alarm (its number, from 1) reports this optimizer's window: its bad gradients, and those of the same backward at
// others, are known.
void report_others(OptimizerEntry& entry, std::uint32_t number);

// Before the window of one optimizer runs again: what is known of the windows of all others. After it: as it was, but
// not where the second run ended elsewhere (`is_back`), since the program continues from there then.
void set_windows_aside(const OptimizerEntry* own);
void put_windows_back(bool is_back);
// A bad loss in it that only other optimizers' parameters lie below: it is theirs to explain.
bool is_elsewhere(const LossNote& note);

PyMethodDef* shared_gradient_methods();

}  // namespace finitude::bindings
