// The call that failed, computed by plain operators in the place of its fused kernel.
#pragma once

#include "explain/finding.h"

namespace finitude::explain {

// Appends what came of it, where the laboratory knows a plain form of the call in which the value was born, or of one
// around it. It says whether the arithmetic or the kernel makes the value; no cause predicts it.
void report_by_parts(Finding& finding, const Evidence& evidence);

}  // namespace finitude::explain
