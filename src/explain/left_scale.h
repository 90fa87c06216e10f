// Gradients that an optimizer takes while they are still multiplied by a loss scale.
#pragma once

#include "explain/finding.h"

namespace finitude::explain {

// One number, without a gradient, that is the scale of a GradScaler.
bool is_loss_scale(const record::TensorUse& use, double scale);

// Where the updates are too large and a GradScaler multiplied this step's loss without ever unscaling a gradient: its
// scale is the cause, for an optimizer whose update is in proportion to the gradient. For another one the scale is a
// second fault, which is said.
void judge_left_scale(Finding& finding, const StepHistory& history, const record::Trace& trace);

}  // namespace finitude::explain
