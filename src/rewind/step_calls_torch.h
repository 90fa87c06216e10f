// What it takes to call a unit of work a second time (a framework's training_step, a closure): generators and
// buffers as they were, what was noted of the open windows set aside, and what was done to the gradients
// after the unit.
#pragma once

#include <Python.h>

namespace finitude::bindings {

// Everything is as at the start of the window, but for gradients and generators: those are the caller's to set. Until
// end_again(), units_run_again() says yes.
void begin_again();
void end_again();
// Does one of the first parameters of any optimizer have a gradient?
bool gradients_present();

// A unit has ended in this window: what is clipped from here on is kept.
void unit_ended();
// Clipping after a unit has ended is part of what makes the gradients that `step` gets: kept until the window
// closes. norm_type: above 0 where it was given their norm of that type, which is computed again then; 0: a norm of
// somebody's own.
void note_clipping(PyObject* original, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                   double norm_type = 0);
void forget_clipping() noexcept;
// Clips as it was clipped after the unit. False: a Python error is set.
bool clip_again();

}  // namespace finitude::bindings
