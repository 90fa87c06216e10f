// The values of a step that was traced without looking at any: its tape is played, and what each operator read and made
// is seen then.
#pragma once

#include "capture/tape.h"
#include "observe/tracer_torch.h"
#include "record/trace.h"
#include "replay/tape_player.h"

namespace finitude::replay {

// The lines of the program that calls on the tape come from, which the trace knows, go onto the tape.
void report_lines(const record::Trace& trace, capture::Tape* tape);

// Fills in the health of what the ops of `trace` read and wrote, and has `tracer`, which is off, keep the calls that
// made something bad. trace and tape were taken along with each other in this process; the trace is a sketch
// (Tracer::start). What came of the replay: the values are those of the step where it is identical. Nothing is filled
// in where it failed.
Played see_again(const capture::Tape& tape, observe::Tracer& tracer, record::Trace* trace);

}  // namespace finitude::replay
