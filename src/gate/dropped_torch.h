// Steps that the script drops itself: gradients that are not finite, and that no step of an optimizer ever applies. A
// few are the script's own business. Many in a row are a run that has stopped learning. With the GIL held.
#pragma once

#include "gate/state_torch.h"

namespace finitude::bindings {

enum class Dropped : std::uint8_t {
  kFinite,
  kBad,
  kNorm
};  // kNorm: finite gradients whose norm for clipping overflowed

// An outermost backward has found that the gradients of the one before are gone, without a step. Those of several
// optimizers count once. bad_since: the loss whose backward left them so, where they were bad; else 0. False: those of
// another optimizer that it left bad have been counted.
bool note_dropped(OptimizerEntry& entry, Dropped what, std::uint64_t bad_since = 0);
// A step is applied; `learns`: it has a gradient that is not zero.
void note_learned(OptimizerEntry& entry, bool learns);
// A step that is not applied, by a GradScaler.
void note_scaler_skip() noexcept;
// The gradients of this optimizer are bad: the first of a row is described to the Python side, which may have to find
// it again.
void note_left_bad(OptimizerEntry& entry);

// After an outermost backward: asks the Python side about rows that are long enough. False: it raises.
bool report_dropped();

// Is a row of so many long enough to ask about?
bool is_long_row(std::uint64_t length) noexcept;

PyMethodDef* dropped_methods();

}  // namespace finitude::bindings
