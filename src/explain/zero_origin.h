// Where the zero comes from at which an operator has no value: a table that a look-up reads, a function that cuts
// numbers off, or something that has a name.
#pragma once

#include "explain/evidence.h"

namespace finitude::explain {

// Into the text of a finding about such a zero that does not say it already: "; the zero is read from alpha_bar, ...".
void report_zero_origin(Finding& finding, const Evidence& evidence);

}  // namespace finitude::explain
