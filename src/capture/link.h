// From raw events to a tape: which calls computed something, and in which order they are to be issued again.
#pragma once

#include "capture/raw_tape.h"

namespace finitude::capture {

// Skipped are views (storage and geometry name a tensor), calls that only hand on what calls inside them
// computed (autocast), host reads, and what other threads computed for themselves. What cannot be linked is reported in
// the tape's `gaps`.
Tape link(RawTape raw);

}  // namespace finitude::capture
