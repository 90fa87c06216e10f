// When is a write into a parameter, optimizer state or buffer itself the birth?
#pragma once

#include <vector>

#include "locate/dataflow.h"
#include "locate/flow.h"
#include "locate/writes.h"
#include "record/trace.h"

namespace finitude::locate {

// True where `op`, outside of the optimizer, brings bad values into state that come from no arithmetic of this trace.
// labels, reads: of what explains the written values. layers: those of `flow` so far.
bool ruins_state(const record::Trace& trace, const Flow& flow, const std::vector<Layer>& layers, const record::Op& op,
                 const Write& write, Kinds kinds, Labels labels, Range reads);

}  // namespace finitude::locate
