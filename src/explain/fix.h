// The fix of a finding and experiments with the whole step: tried on the tape, within a time budget.
#pragma once

#include "explain/finding.h"
#include "replay/edit.h"

namespace finitude::explain {

// In seconds: so many times the step, and never more than `most`; small steps get `least`, so that one that takes
// a millisecond is not left untried for want of twenty.
struct TimeBudget {
  double times_the_step = 20, most = 60, least = 2;
};

// Tries the edits of the finding, in their order, until one is verified (docs/contract.md, "Verified fix"), and
// the step as it is: again, in float64, with deterministic kernels, on earlier weights. Fills in the fix and appends
// the experiments. First memory that nobody wrote is filled, where the step reads any: that may settle the cause
// (fill.h), and the line to mend, which `trace` says. Of earlier weights the learning rate may follow, with `history`
// (last_update.h). What does not fit into the budget is skipped and said so. True: it blames half precision, and the
// step in float32 fails too, so that cannot be all.
bool try_on_step(Finding& finding, replay::StepLab& lab, const TimeBudget& budget, const record::Trace* trace = nullptr,
                 const StepHistory* history = nullptr);

// Nothing else is known to be the cause.
void doubt_half(Finding& finding);

}  // namespace finitude::explain
