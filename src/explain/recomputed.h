// What torch.utils.checkpoint computes again in backward, and ends by an exception as soon as it has all that backward
// needs.
#pragma once

#include "explain/finding.h"
#include "record/trace.h"

namespace finitude::explain {

// The operator of such a computation in which it ended, where `made` handed out memory for it: nothing has written that
// memory then. kNone: there is none.
record::OpId cut_off_in(const record::Trace& trace, record::OpId made);

// Says so in the finding, with the line that calls for the checkpoint.
void report_cut_off(const record::Trace& trace, record::OpId cut, record::OpId made, Finding* finding);

}  // namespace finitude::explain
