// The tape whose recording has ended, until it is written, taken or let go of. GIL held, but for take_tape().
#pragma once

#include "capture/tape.h"
#include "record/trace.h"

namespace finitude::bindings {

// The tape whose recording has just ended; null where there is none, or at a second call. Takes the recording over:
// names and outcomes have to be given before. It stays until it is written, taken or cleared, or another is begun.
capture::Tape* recorded_tape();
// As if it had been recorded just now. Never null; stays until then, too.
capture::Tape* put_tape_in_hand(capture::Tape tape);

// Those of the step whose tape is open, as capture::write_statistics gives them: the tape gets them when it is
// taken. Nothing where nothing was recorded.
void put_statistics_in_hand(const record::Trace& trace);
// The open tape, which is given up. Ends the recording.
capture::Tape take_tape();
// It is let go of, and the statistics with it.
void drop_tape_in_hand();

}  // namespace finitude::bindings
