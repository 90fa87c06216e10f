// The tape, as Python sees it.
#pragma once

#include <pybind11/pybind11.h>

#include "capture/tape.h"
#include "record/trace.h"
#include "replay/keep_tape_torch.h"

namespace finitude::bindings {

void define_tape(pybind11::module_& m);
void define_tape_level(pybind11::module_& m);
void define_capsules(pybind11::module_& m);

// The tape whose recording has just ended; null where there is none, or at a second call. Takes the recording over:
// names and outcomes have to be told before. It stays until it is written, taken or cleared, or another is begun.
capture::Tape* recorded_tape();
// As if it had been recorded just now. Never null; stays until then, too.
capture::Tape* put_tape_in_hand(capture::Tape tape);

// Those of the step whose tape is in hand, as capture::write_statistics gives them: the tape gets them when it is
// taken. Nothing where nothing was recorded.
void put_statistics_in_hand(const record::Trace& trace);
// The tape in hand, which is let go of. Ends the recording.
capture::Tape take_tape();
// line_of(file, line) gives the text of a line, for which it has the GIL; None: none is told.
replay::LineText line_text(const pybind11::object& line_of);
// What was there before the step, and what no operator wrote: [(kind, name, bytes)].
pybind11::list inputs_of(const capture::Tape& tape);

}  // namespace finitude::bindings
