// The trace of the last step that went well, kept where a report is to show it: with --level trace a healthy step would
// else leave nothing that it could be compared with. One trace is held beside the one that is being taken. GIL held for
// all of it.
#pragma once

#include <Python.h>

#include <cstddef>
#include <memory>
#include <string>

#include "record/trace.h"

namespace finitude::bindings {

// A healthy window ends here: its trace is kept or let go, and the next one begins.
void end_traced_window();
// Is it kept?
bool keeps_last_step() noexcept;

// From here on, or no more; what was kept is let go of.
void keep_last_step(bool on);
// What lies in this tensor's memory, for the traces to come. kind: "parameter", "buffer", else optimizer state.
void last_step_name(PyObject* tensor, const std::string& kind, const std::string& name);
// Memory that is gone is forgotten: many optimizers may be made, one after the other.
void last_step_forget_gone();
// The ops of it as JSON, `most` at most; empty where there is none.
std::string last_step_ops(std::size_t most);
// The trace of it, and that of now, which is taken with the names that were given: it begins again empty.
std::shared_ptr<const record::Trace> last_step_trace();
std::shared_ptr<const record::Trace> take_trace();

}  // namespace finitude::bindings
