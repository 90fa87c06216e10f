// The tape, as Python sees it.
#pragma once

#include <pybind11/pybind11.h>

#include "capture/tape.h"
#include "replay/keep_tape_torch.h"

namespace finitude::bindings {

void define_tape(pybind11::module_& m);
void define_capsules(pybind11::module_& m);

// line_of(file, line) gives the text of a line, for which it has the GIL; None: none is reported.
replay::LineText line_text(const pybind11::object& line_of);
// What was there before the step, and what no operator wrote: [(kind, name, bytes)].
pybind11::list inputs_of(const capture::Tape& tape);

}  // namespace finitude::bindings
