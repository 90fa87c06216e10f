// Integers that left the range of their format and came back at its other end, before a float function read them.
#pragma once

#include "explain/finding.h"

namespace finitude::explain {

// Of a finding about a value at which a function is not defined: where that value was computed in integers, and they
// wrapped around, the finding names that operation, and the change of the value is no longer what is advised.
void report_wrapped(Finding& finding, const Evidence& evidence);

}  // namespace finitude::explain
