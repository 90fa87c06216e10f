// A birth that the optimizer led to by its own steps: one that evaluates the loss several times within a step.
#pragma once

#include "explain/evidence.h"

namespace finitude::explain {

// Where a parameter went bad because the line of the birth, finite in earlier evaluations of the same step, no longer
// was: says so, and advises shorter steps before what the rule advises.
void report_own_steps(Finding& finding, const Evidence& evidence);

}  // namespace finitude::explain
