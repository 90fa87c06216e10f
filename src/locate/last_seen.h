// The value that an exception was about, where the program has no name left for it: what the last operator of the
// step saw.
#pragma once

#include "record/trace.h"

namespace finitude::locate {

// Makes a sink of the value that is not finite and that the last such operator gave; of one that gave none (a
// comparison, a number for the host, an operator that failed), of what it was given. NaN and +Inf go before -Inf,
// which may be a mask. False: no operator saw any.
bool sink_last_seen(record::Trace* trace);

}  // namespace finitude::locate
