// --level tape: the operators of every step are recorded as it runs, without their values; where it goes bad, its tape
// is played instead of running the program's code again.
#pragma once

#include <Python.h>

#include <string>

#include "gate/state_torch.h"
#include "rewind/snapshot_torch.h"

namespace finitude::bindings {

// max_bytes: of what a step reads; a step that reads more has no tape. 0: off, and what is recorded is dropped. every:
// not 0, one step in so many is recorded, and becomes a template where it is good (template_tape_torch.h), or is
// verified (verified_step_torch.h). GIL held, as
// for all below.
void set_tape_level(std::size_t max_bytes, std::uint64_t every = 0, bool verifies = false) noexcept;

// The tape of the open window is dropped and another one begins here. Nothing where a second run is under way.
void tape_window_begins();
// A good step is about to be applied; as the first of all that is done about it.
void tape_step_is_good(const OptimizerEntry& entry);
// Asked once at each such step: is the window recorded that begins when it has been applied?
bool tape_follows() noexcept;
// A good step is about to be applied, and is not recorded itself. has_end: tape_step_ends() will be called.
void tape_step_begins(const OptimizerEntry& entry, bool has_end);
// False: with a Python error for the program.
bool tape_step_ends();
// An outermost backward is over.
void tape_backward_ended();
// Recording ends: somebody else records or traces, or the process is a fork.
void tape_level_rests() noexcept;
// A step is recorded that may become a template.
bool tape_records_template() noexcept;
// Was it switched off because of a device?
bool tape_level_lost() noexcept;
// The generators as the current tape began with them.
const RngState& tape_generators() noexcept;
// Why the current tape is not that of the window of this optimizer; "": it is.
std::string tape_level_lacks(PyObject* optimizer);

}  // namespace finitude::bindings
