// What it takes to call a unit of work a second time (a framework's training_step, a closure): generators and
// buffers as they were, what was noted of the open windows set aside, and what was done to the gradients
// after the unit.
#pragma once

#include <Python.h>

namespace finitude::bindings {

// A second run by calling is under way: whatever optimizer steps, the Python side decides.
bool units_run_again() noexcept;
// Clipping after a unit has ended is part of what makes the gradients that `step` gets: kept until the window
// closes. norm_type: above 0 where it was given their norm of that type, which is computed again then; 0: a norm of
// somebody's own.
void note_clipping(PyObject* original, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                   double norm_type = 0);
void forget_clipping() noexcept;

}  // namespace finitude::bindings
