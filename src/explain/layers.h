// How a value grew from layer to layer until it left its range, forward or backward.
#pragma once

#include "explain/finding.h"

namespace finitude::explain {

// Into the text of a finding whose birth is an overflow: by which factor a layer, or an iteration of a loop, the values
// grew, and over which.
// Nothing where the operations on the way belong to fewer than three of them, or the values did not grow.
void report_layers(Finding& finding, const Evidence& evidence);

}  // namespace finitude::explain
