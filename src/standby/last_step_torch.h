// The trace of the last step that went well, kept where a report is to show it: with --level trace a healthy step would
// else leave nothing that it could be compared with. One trace is held beside the one that is being taken. GIL held for
// all of it.
#pragma once

#include <pybind11/pybind11.h>

namespace finitude::bindings {

// A healthy window ends here: its trace is kept or let go, and the next one begins.
void end_traced_window();
// Is it kept?
bool keeps_last_step() noexcept;

void define_last_step(pybind11::module_& m);

}  // namespace finitude::bindings
