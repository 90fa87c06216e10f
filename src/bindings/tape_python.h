// The tape, as Python sees it.
#pragma once

#include <pybind11/pybind11.h>

#include "capture/tape.h"

namespace finitude::bindings {

void define_tape(pybind11::module_& m);
void define_tape_level(pybind11::module_& m);

// The tape whose recording has just ended; null where there is none, or at a second call. Takes the recording over: names
// and outcomes have to be told before. It stays until it is written, taken or cleared, or another is begun.
capture::Tape* recorded_tape();
// As if it had been recorded just now. Never null; stays until then, too.
capture::Tape* put_tape_in_hand(capture::Tape tape);

}  // namespace finitude::bindings
