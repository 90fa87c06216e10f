// Who hangs on the gate. What goes back (src/rewind) and what is recorded ahead (src/standby) has to hear of a step as
// it happens; the gate calls them here, and includes none of their headers.
//
// One event has one listener, a plain function, set once when the module is loaded (bindings/listeners_torch.cpp names
// all of them). An event without a listener does nothing, and a question without one is answered as in a program in
// which nothing is kept. All are called with the GIL held, on the thread of the program that trains. They may throw,
// which the barrier of the hook stops (pyhost/exception_barrier_torch.h), and set no Python error, but for
// `engine_call`. On the path of a healthy step they allocate nothing in the steady state.
//
// The events of a healthy step, in this order:
//     loss_noted, records_losses, loss_given   for each root of a backward that is about to run
//     backward_ended                           the gradients have been looked at
//     clipped                                  where the program clips them
//     buffer_turned_nan, is_jumped_over        in the optimizer's pre-hook, as its window is judged
//     before_apply                             the window is good, nothing is written yet
//     step_is_good, applied                    it is counted as applied
//     recorded                                 its record is in the ring
//     records_next
//     trace_ended                              where nothing looks at what the step of a trace writes
//     closed                                   the gate has let go of the window
//     next_begins                              where records_next said yes
//     starts                                   the next window starts here
//     reports_news                             where `recorded` said yes
// The optimizer's own step runs. Where there is a post-hook, it looks at what was written, and then:
//     keeps_trace, trace_ended                 where that was left to it
//     step_over
//     starts                                   where it was held back, as the step could still be undone
// A skipped step: left_out, closed, starts, recording_restarts. One that runs a second time from here: closed.
// One that a GradScaler skips: closed, starts (not where its flag on a device does it), recording_restarts.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>

#include <cstdint>

#include "gate/engine_call.h"
#include "record/ring_format.h"

namespace finitude::bindings {

struct OptimizerEntry;

struct Listeners {
  // ---- optimizers ----
  // One is about to be entered: the program is none without an optimizer.
  void (*optimizer_made)() = [] {};
  // It is gone, and its entry is about to be freed.
  void (*optimizer_gone)(const OptimizerEntry& entry) = [](const OptimizerEntry&) {};
  // The first step of one comes, whose graph began at that autograd node, unless backward has gone through it
  // (UINT64_MAX).
  void (*first_step_comes)(std::uint64_t node) = [](std::uint64_t) {};

  // ---- a backward ----
  // An outermost engine call of a program without an optimizer: has to call `plain`, and returns what the program gets.
  PyObject* (*engine_call)(Vectorcall plain, PyObject* const* args, Py_ssize_t nargs,
                           PyObject* kwnames) = [](Vectorcall plain, PyObject* const* args, Py_ssize_t nargs,
                                                   PyObject* kwnames) { return plain(nullptr, args, nargs, kwnames); };
  // A root was noted under that serial (LossNote).
  void (*loss_noted)(std::uint64_t serial, const at::Tensor& root) = [](std::uint64_t, const at::Tensor&) {};
  // Is this step recorded, so that finite losses are sinks as well?
  bool (*records_losses)() = [] { return false; };
  // The same root, where it is a loss of the open windows: not inside a closure, not of another optimizer's second run.
  void (*loss_given)(std::uint64_t serial, const at::Tensor& root, bool is_bad) = [](std::uint64_t, const at::Tensor&,
                                                                                     bool) {};
  // An outermost backward is over.
  void (*backward_ended)() = [] {};
  // Gradients were clipped by this call. norm_type: above 0 where the call was given their norm of that type.
  void (*clipped)(PyObject* original, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                  double norm_type) = [](PyObject*, PyObject* const*, Py_ssize_t, PyObject*, double) {};

  // ---- a window is judged ----
  // Does a buffer hold a NaN that was not there when the window began?
  bool (*buffer_turned_nan)() = [] { return false; };
  // While a window runs a second time: is this step only one that it goes over?
  bool (*is_jumped_over)(const OptimizerEntry& entry) = [](const OptimizerEntry&) { return false; };

  // ---- its step is not applied ----
  void (*left_out)(OptimizerEntry& entry) = [](OptimizerEntry&) {};
  // Behind `starts`: what was recorded of the window is of no use, the next one is recorded from here.
  void (*recording_restarts)() = [] {};

  // ---- its step is applied ----
  void (*before_apply)(OptimizerEntry& entry) = [](OptimizerEntry&) {};
  void (*step_is_good)(const OptimizerEntry& entry) = [](const OptimizerEntry&) {};
  void (*applied)(OptimizerEntry& entry) = [](OptimizerEntry&) {};
  // That is its record. has_marks: the largest magnitude of each gradient is in `entry.marks`. Is there something to
  // say of it? Then reports_news() is called once the window is closed.
  bool (*recorded)(const OptimizerEntry& entry, const record::StepRecord& step,
                   bool has_marks) = [](const OptimizerEntry&, const record::StepRecord&, bool) { return false; };
  // False: with the Python error that the program is to get, as a handler of a signal has raised it.
  bool (*reports_news)(OptimizerEntry& entry) = [](OptimizerEntry&) { return true; };
  // Is the next window to be recorded? Asked once for each applied step.
  bool (*records_next)() = [] { return false; };
  // The trace of a healthy window ends. Is it kept?
  void (*trace_ended)() = [] {};
  bool (*keeps_trace)() = [] { return false; };
  // The window is closed; not said while a unit of work runs again.
  void (*closed)() = [] {};
  // has_end: step_over() will be called.
  void (*next_begins)(const OptimizerEntry& entry, bool has_end) = [](const OptimizerEntry&, bool) {};
  // The next window starts here: when this call of the program's returns.
  void (*starts)(OptimizerEntry& entry) = [](OptimizerEntry&) {};
  // False: with a Python error for the program.
  bool (*step_over)() = [] { return true; };

  // ---- batches, which rewind/loader_torch.h hands out ----
  // One for training was given and noted.
  void (*training_batch_given)() = [] {};

  // ---- ends ----
  // Nobody knows where the open window started.
  void (*start_lost)() = [] {};
  // The gate is off for good. Throws nothing.
  void (*switched_off)() = [] {};
};

inline constinit Listeners the_listeners;
inline Listeners& listeners() noexcept { return the_listeners; }

}  // namespace finitude::bindings
