// Memory that a step read before anything was written to it: what other content of it makes of the step.
#pragma once

#include <optional>

#include "explain/finding.h"
#include "replay/edit.h"

namespace finitude::explain {

// Appends the two experiments. Where the step is finite with zeros there, but not with NaN, what nobody wrote decides:
// that is the cause, whatever the arithmetic was that it went through. trace: null where there is none; it says the
// line. One whose outcome is the same either way says, and judges nothing.
void judge_fill(Finding& finding, const replay::FillTrial& trial, const record::Trace* trace);

// What explains a step that failed, and came out finite when it was run again: the second run reads memory that nobody
// had written, and fails with NaN there. Nothing: it does not depend on such memory. trial: of the second run.
std::optional<Finding> finding_of_chance(const replay::FillTrial& trial, const record::Trace& trace,
                                         const std::string& judged = "loss and gradients");

}  // namespace finitude::explain
