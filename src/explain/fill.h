// Memory that a step read before anything was written to it: what other content of it makes of the step.
#pragma once

#include "explain/finding.h"
#include "replay/edit.h"

namespace finitude::explain {

// Appends the two experiments. Where the step is finite with zeros there, but not with NaN, what nobody wrote decides:
// that is the cause, whatever the arithmetic was that it went through. trace: null where there is none; it says the
// line. One whose outcome is the same either way says, and judges nothing.
void judge_fill(Finding& finding, const replay::FillTrial& trial, const record::Trace* trace);

}  // namespace finitude::explain
