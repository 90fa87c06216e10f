// How much of the memory each unseen write of a trace has changed: see record/unseen_write.h.
#pragma once

#include "capture/tape.h"
#include "observe/tracer_torch.h"
#include "record/trace.h"

namespace finitude::replay {

// Puts the numbers into the ops of the trace. tape: of the step; null: there is none, and less is known.
void report_unseen_bytes(const capture::Tape* tape, const observe::Tracer& tracer, record::Trace* trace);

}  // namespace finitude::replay
