// Values that the program has no name for: the one that an exception was about, which the last operator of the step
// saw, and those that a rank gave other ranks.
#pragma once

#include "record/trace.h"

namespace finitude::locate {

// Makes a sink of the value that is not finite and that the last such operator gave; of one that gave none (a
// comparison, a number for the host, an operator that failed), of what it was given. NaN and +Inf go before -Inf,
// which may be a mask. False: no operator saw any.
bool sink_last_seen(record::Trace* trace);

// Makes sinks of the values that are not finite and that this process gave others in collective operations and sends,
// as they were when it gave them: of a rank whose own loss and gradients are finite. False: it gave none.
bool sink_given_away(record::Trace* trace);

}  // namespace finitude::locate
