// The functions that torch calls. Each is called with the GIL held, on the thread of the program that calls backward,
// step or clipping; the engine's own threads come here only for a backward inside a backward. What a hook does itself
// runs inside the barrier (as_guest, guest_hook), so that a C++ exception in the gate switches the gate off and never
// reaches the program.
// A null return means that a Python error is set, and torch raises it to the caller.
#include "gate/hooks_torch.h"

#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/python_variable.h>

#include <string>
#include <utility>
#include <vector>

#include "gate/clip_torch.h"
#include "gate/dropped_torch.h"
#include "gate/engine_call.h"
#include "gate/gate_cuda_torch.h"
#include "gate/listeners.h"
#include "gate/losses_torch.h"
#include "gate/param_groups_torch.h"
#include "gate/post_hook_torch.h"
#include "gate/post_step_scan_torch.h"
#include "gate/requested_gradients_torch.h"
#include "gate/scaler_torch.h"
#include "gate/second_run.h"
#include "gate/state_torch.h"
#include "gate/step_wrapper_torch.h"
#include "gate/stream_cuda_torch.h"
#include "gate/window_torch.h"
#include "observe/tracer_torch.h"
#include "pyhost/attributes_python.h"
#include "pyhost/exception_barrier_torch.h"
#include "pyhost/is_tensor_torch.h"
#include "pyhost/meter.h"
#include "pyhost/number_torch.h"
#include "pyhost/saved_error_python.h"

namespace finitude::bindings {

namespace {

// Why the live half is off, and how many steps had been judged by then.
struct Off {
  bool is_failure = false;
  std::string why;
  std::uint64_t steps = 0;
};
base::Immortal<Off> the_off;

// Writes to sys.stderr, if the program has one: descriptor 2 may be another file by now. The stream is owned during
// the call, since its write may be Python code that replaces sys.stderr. An error of the stream is dropped.
void say(const std::string& text) {
  const Object stream = Object::share(PySys_GetObject("stderr"));
  if (!stream || stream.get() == Py_None) return;
  Object::take(PyObject_CallMethod(stream.get(), "write", "s", text.c_str()));
  PyErr_Clear();
  Object::take(PyObject_CallMethod(stream.get(), "flush", nullptr));
  PyErr_Clear();
}

// switched_off() -> (why, steps judged before) after an internal failure of the gate, else None.
PyObject* switched_off(PyObject*, PyObject*) {
  if (!(*the_off).is_failure) Py_RETURN_NONE;
  return Py_BuildValue("(sK)", (*the_off).why.c_str(), static_cast<unsigned long long>((*the_off).steps));
}

}  // namespace

// `on` goes first: what follows may run Python code, and that must not enter the gate again. Our
// found_inf flags are taken off the optimizers, because nothing would clear them any more.
void switch_off(const char* why) noexcept {
  if (!std::exchange(live().on, false)) return;
  PyErr_Clear();
  leave_devices(false);
  listeners().switched_off();
  try {
    (*the_off).why = why;
    (*the_off).is_failure = true;
    (*the_off).steps = live().counters.steps;
    say("finitude: switched off after an internal failure (" + (*the_off).why + "). Training continues unwatched.\n");
  } catch (const std::exception&) {
  }
}

namespace {

// `args` are those of optimizer.step, self first. All references are borrowed. In a healthy loop without a closure
// this is two tests, without a lookup.
bool has_closure(PyObject* args, PyObject* kwargs) {
  if (PyTuple_Check(args) && PyTuple_GET_SIZE(args) > 1 && PyTuple_GET_ITEM(args, 1) != Py_None) return true;
  static PyObject* kClosure = PyUnicode_InternFromString("closure");
  if (kwargs == nullptr || !PyDict_Check(kwargs)) return false;
  if (PyDict_GET_SIZE(kwargs) == 0) return false;
  PyObject* value = PyDict_GetItem(kwargs, kClosure);
  return value != nullptr && value != Py_None;
}

// A GradScaler leaves its flag in the attribute `found_inf` of an optimizer whose kernel checks it. Only a tensor on
// the CPU is read: to read one of a GPU would wait for the device, on every step.
bool is_found_inf(PyObject* optimizer) {
  static PyObject* kFoundInf = PyUnicode_InternFromString("found_inf");
  const Object value = own_attribute(optimizer, kFoundInf);
  return value && number_on_cpu(value.get()).value_or(0) != 0;
}

// A backward pass has raised. The Python side finds out whether the error is about a value that is not finite. The
// error is set again afterwards, unless the callback raises another one: NonFiniteError, or that of a signal handler of
// the program.
void report_raised() {
  SavedError raised;
  PyObject* exception = raised.exception();
  if (exception != nullptr && !call_cold("on_backward_raised", exception)) raised.drop();
}

// Replaces torch.autograd._engine_run_backward(tensors, grad_tensors, retain, create, inputs, allow_unreachable=,
// accumulate_grad=). Returns what the original returns, or null. Only the outermost call is counted as a backward: a
// checkpoint that recomputes calls the engine again from inside of it.
// Order: the state of gradients before the call (before_backward), then the roots (note_roots), then the original,
// then what backward left (after_backward). Before the call, gradients that the script zeroed still can be
// distinguished from those that this backward adds to.
PyObject* run_backward(PyObject*, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  const Metered hook(Piece::kHook);
  Live& l = live();
  PyObject* original = l.original_backward.get();
  if (!l.on || nargs < 1 || !accumulates(args, nargs, kwnames)) {
    // The gate is off, or the call writes no .grad: autograd.grad. Its roots are not losses, but a backward that it
    // runs inside is not outermost.
    const bool is_outermost = l.on && !l.optimizers.empty() && !in_backward();
    bool is_asked = false;
    if (is_outermost) as_guest([&] { is_asked = note_asked(args, nargs); });
    ++engine_depth;
    const Metered program(Piece::kProgram);
    Object result = Object::take(PyObject_Vectorcall(original, args, static_cast<size_t>(nargs), kwnames));
    --engine_depth;
    if (is_asked && result) as_guest([&] { note_answered(args, result.get()); });
    return is_outermost && result && l.on && !report_asked_row() ? nullptr : result.release();
  }
  const bool outermost = !in_backward();
  if (outermost) {
    // The Python side asked for this once. The flag is cleared first, since the callback may set it again.
    if (l.wake_on_backward) {
      l.wake_on_backward = false;
      if (!call_cold("on_backward", args[0])) return nullptr;  // raised by a signal handler of the program
    }
    as_guest(before_backward);
    ++l.counters.backward_calls;
    ++l.backward_serial;
    as_guest([&] {
      note_roots(args[0], nargs > 1 ? args[1] : nullptr);
      if (observe::Tracer::get().on()) observe::Tracer::get().set_backward_stack();
    });
  } else {
    as_guest([&] { note_inner_roots(args[0]); });
  }
  ++engine_depth;
  Object result;
  {
    // Sums of gradients run between the nodes, and are part of backward too.
    const Metered program(Piece::kProgram);
    const StreamedBackward streamed(outermost && l.devices != 0, l.closure_depth == 0 && !units_run_again());
    observe::Tracer::PhaseGuard phase(outermost ? record::Phase::kBackward : observe::Tracer::thread_phase());
    result = Object::take(PyObject_Vectorcall(original, args, static_cast<size_t>(nargs), kwnames));
  }
  --engine_depth;
  // If backward raised, gradients are those of a part of the graph: they are not judged.
  if (outermost && result) as_guest(after_backward);
  // after_backward returns nothing, so an error of its callback on_left_bad (a signal handler of the program has
  // raised) is found on the thread state. A result with an error set would be a SystemError of CPython.
  if (result && PyErr_Occurred() != nullptr) result = Object();
  if (outermost && result && l.on && !report_dropped()) result = Object();
  if (outermost && !result && l.on) report_raised();
  return result.release();
}

// A program without an optimizer has no step at which a window could be judged: there a listener takes each outermost
// call (training by manual updates).
PyObject* engine_run_backward(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  const Live& l = live();
  return l.on && !in_backward() && l.optimizers.empty() ? listeners().engine_call(&run_backward, args, nargs, kwnames)
                                                        : run_backward(self, args, nargs, kwnames);
}

// The step is not applied: it is counted, recorded, and its window is closed. The record is written first, since
// close_window forgets the losses that it is made of.
void leave_out(OptimizerEntry& entry, const WindowVerdict& verdict, double lr, std::uint32_t flags) {
  record_step(entry, verdict, lr, flags);
  listeners().left_out(entry);
  ++live().counters.vetoes;
  ++live().counters.steps;
  ++entry.step;
  close_window(entry);
}

// A GradScaler has found an overflow, which is normal while it searches its scale. The optimizer's kernel sees the
// flag and leaves everything unchanged, so nothing is vetoed here. `entry` stays valid over the callback: the caller
// of step holds the optimizer.
PyObject* leave_to_scaler(OptimizerEntry& entry) {
  ++live().counters.scaler_skips;
  note_scaler_skip();
  record_step(entry, {}, ParamGroups(entry.self).lr(entry.lr), record::kStepScalerSkip);
  if (!call_cold("on_scaler_skip", entry.self)) return nullptr;
  close_window(entry);
  listeners().recording_restarts();
  Py_RETURN_NONE;
}

// The trace of the step that this process is to explain has begun. Returns None, or null with an error set.
PyObject* report_armed(PyObject* optimizer) {
  if (!call_cold("on_armed", optimizer)) return nullptr;
  Py_RETURN_NONE;
}

// Returns a new (args, kwargs) with the closure replaced by one that judges what it evaluated, or None, or null. Torch
// takes a tuple from a pre-hook in place of the arguments. What is computed in a closure is forward. What the
// optimizer computes itself is known by its methods on the stack. The guard around the step restores the phase.
PyObject* begin_closure(OptimizerEntry& entry, PyObject* args, PyObject* kwargs) {
  if (!entry.in_torch) observe::Tracer::thread_phase() = record::Phase::kForward;
  Object r = call_cold("on_closure", entry.self, args, kwargs);
  entry.closure_open = !entry.in_torch && r && r.get() != Py_None;
  return r.release();
}

// The pre-hook of every optimizer: (optimizer, args, kwargs). All decisions about a step are made here, because only
// now it is known whether the script has handled a bad value itself.
// Returns None to let the step run, a new (args, kwargs) for a step with a closure, or null to raise out of
// optimizer.step. A veto also returns None: veto() has prepared that the class's step is not called.
// A healthy step runs: find_entry, judge_window, commit_window. None of them allocates in the steady state or calls
// Python, as vectors keep their capacity from the step before.
PyObject* pre_hook(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  const Metered hook(Piece::kHook);
  Live& l = live();
  if (!l.on || nargs < 3) Py_RETURN_NONE;
  PyObject* optimizer = args[0];
  OptimizerEntry* entry = find_entry(optimizer);
  if (entry != nullptr && entry->in_step > 0) Py_RETURN_NONE;  // a step inside a step (super().step())
  const bool closure = has_closure(args[1], args[2]);
  // The optimizer around this one (SAM, Lookahead) has been judged for both.
  if (is_judged_outside(entry, closure)) Py_RETURN_NONE;
  // Left from a call whose step never ran, because another pre-hook raised: it would veto this call.
  if (entry != nullptr) entry->veto_now = entry->closure_open = false;
  if (entry != nullptr && (entry->armed_post || entry->armed_restore)) remove_stale_hooks(*entry);
  // The step before raised after it was let through, so its post-hook did not run and the end of its window is unknown.
  // A rewind to there would compute something else; the start is given up.
  if (entry != nullptr && entry->snapshot_pending) {
    entry->snapshot_pending = false;
    listeners().start_lost();
  }
  // First step: the state may be bad already. An alarm about that decides this step, whatever the window holds.
  bool bad_start = false;
  if (entry == nullptr || !entry->first_done) {
    if (entry == nullptr) entry = new_entry(optimizer);
    if (entry == nullptr) {
      switch_off("an optimizer takes no weak reference");
      Py_RETURN_NONE;
    }
    // Set before the callback, which may step an optimizer or look the entry up.
    entry->first_done = true;
    listeners().first_step_comes(UINT64_MAX);
    const Object r = call_cold("first_seen", optimizer);
    if (!r) return nullptr;  // NonFiniteError: the state was bad before step 0
    bad_start = r.get() == Py_True;
  }
  // A class outside torch.optim may use gradients that are there already before it evaluates its closure.
  if (closure && (entry->in_torch || entry->backwards == 0)) return begin_closure(*entry, args[1], args[2]);
  // Optimizers stepped from hooks of one backward are one step of the program: where one of them was vetoed, those
  // that follow in the same backward would mix weights of two steps.
  if (in_backward() && l.left_out_serial == l.backward_serial) {
    leave_out(*entry, {}, ParamGroups(optimizer).lr(entry->lr), record::kStepVetoed);
    veto(*entry);
    Py_RETURN_NONE;
  }
  // Verdicts of earlier steps that have arrived meanwhile. Waits only if the host is too far ahead of the device.
  if (entry->device && !report_late(*entry, false)) return nullptr;
  if (!entry->device && is_found_inf(optimizer)) return leave_to_scaler(*entry);
  WindowVerdict verdict;
  if (!judge_window(*entry, &verdict, l.closure_depth == 0)) {
    switch_off("param_groups could not be read");
    Py_RETURN_NONE;
  }
  if (verdict.scaler_skip) return leave_to_scaler(*entry);
  const double lr = verdict.lr;
  // Rare from here: Python decides. on_window returns None (apply the step), True (veto), something else (the window
  // runs a second time), or null (raise).
  if (verdict.needs_cold || bad_start || l.closure_depth > 0) {
    const Object r = call_cold("on_window", optimizer);
    // The exception that ends a second run by calling: it has reached its step. Nothing is counted.
    if (!r && units_run_again()) return nullptr;
    const bool vetoed = r.get() != Py_None;
    const bool again = r && vetoed && r.get() != Py_True;  // the same step runs a second time
    if (again)
      close_window(*entry);
    else if (vetoed)
      leave_out(*entry, verdict, lr, record::kStepVetoed | record::kStepAlarm);
    if (!r) return nullptr;  // NonFiniteError, out of optimizer.step
    if (vetoed) {
      if (in_backward())
        l.left_out_serial = l.backward_serial;
      else if (!again)
        listeners().starts(*entry);  // the next window starts where the vetoed call returns
      if (!again) listeners().recording_restarts();
      veto(*entry);
      Py_RETURN_NONE;
    }
  }
  // A step inside the step of a class outside torch.optim, with gradients of its own: judged above, but counted as
  // part of the outer step, which is the one that is applied or undone.
  if (l.steps_open > 0 && !in_backward()) {
    ++entry->step;
    const bool armed = begin_trace_of_target(*entry);
    close_window(*entry);
    if (armed) return report_armed(optimizer);
    Py_RETURN_NONE;
  }
  if (closure) return begin_closure(*entry, args[1], args[2]);
  // The window is good. Everything that has to see the weights from before the step comes before this call returns.
  listeners().before_apply(*entry);
  if (!commit_window(*entry, verdict, lr)) return nullptr;
  if (l.target_set && entry->ordinal == l.target_ordinal && entry->step == l.target_first)
    return report_armed(optimizer);
  Py_RETURN_NONE;
}

// The hook after an optimizer's step, METH_FASTCALL: (optimizer, args, kwargs). It is in place only for steps whose
// result is to be read (arm_post_hook). Reads what the step wrote, and calls on_written if that is not finite. Returns
// None, or null with the error of that call.
// finish_commit comes after the callback, because on_written may undo the step, which needs the copy that
// finish_commit drops.
PyObject* check_after_step(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  const Metered hook(Piece::kHook);
  if (nargs < 1 || !live().on) Py_RETURN_NONE;
  OptimizerEntry* entry = find_entry(args[0]);
  observe::Tracer::thread_phase() = record::Phase::kForward;
  if (entry == nullptr) Py_RETURN_NONE;
  const bool bad = entry->looks_after && wrote_non_finite(*entry);
  bool raised = bad && !call_cold("on_written", args[0]);
  if (!bad && entry->clears_trace) {
    // Once for each optimizer: what its first step has made is there to be named.
    if (listeners().keeps_trace() && entry->step == 1) raised = !call_cold("on_kept", args[0]);
    listeners().trace_ended();
  }
  entry->clears_trace = false;
  if (raised) {
    const SavedError error;
    finish_commit(*entry);
  } else {
    raised = !finish_commit(*entry);
  }
  if (raised) return nullptr;
  Py_RETURN_NONE;
}

// Replaces torch.nn.utils.clip_grad._clip_grads_with_norm_.
PyObject* before_clip(PyObject*, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return clip_with_norm(args, nargs, kwnames);
}

// Replaces torch.nn.utils.clip_grad_value_(parameters, clip_value, foreach=None). It makes Inf finite, so the
// gradients are read before it writes.
PyObject* clip_value(PyObject*, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  Live& l = live();
  PyObject* const original = l.original_clip_value.get();
  if (!l.on || nargs < 1) return PyObject_Vectorcall(original, args, static_cast<size_t>(nargs), kwnames);
  if (!is_tensor_object(args[0])) {  // torch asks the same: a proxy that says that it is one is no list
    const int claims = PyObject_IsInstance(args[0], THPVariableClass);
    if (claims < 0) return nullptr;
    if (claims != 0) return PyObject_Vectorcall(original, args, static_cast<size_t>(nargs), kwnames);
  }
  // A generator can be walked only once, so a list is made of it. It is owned until the end; `call` borrows the other
  // arguments, which the caller holds.
  const Object list =
      Object::take(is_tensor_object(args[0]) ? Py_BuildValue("[O]", args[0]) : PySequence_List(args[0]));
  if (!list) return nullptr;
  as_guest([&] {
    scan_before_write(list.get());
    if (l.devices != 0) before_device_write(list.get(), nullptr);
  });
  std::vector<PyObject*> call(args, args + nargs + (kwnames != nullptr ? PyTuple_GET_SIZE(kwnames) : 0));
  call[0] = list.get();
  PyObject* result = PyObject_Vectorcall(original, call.data(), static_cast<size_t>(nargs), kwnames);
  if (result != nullptr) {
    as_guest([&] {
      listeners().clipped(original, call.data(), nargs, kwnames, 0);
      if (l.devices != 0 && nargs >= 2 && keeps_finite(args[1])) after_device_write(list.get());
    });
  }
  return result;
}

// set_clip_value(original): takes a reference to the function that clip_grad_value replaces.
PyObject* set_clip_value(PyObject*, PyObject* original) {
  live().original_clip_value = Object::share(original);
  Py_RETURN_NONE;
}

// Those with guest_hook return None where they fail inside. Those that call the original must not: each guards its own
// parts, so that the original is called exactly once in any case.
PyMethodDef hook_table[] = {
    {"scaler_methods", scaler_methods, METH_VARARGS, nullptr},
    {"set_clip_value", set_clip_value, METH_O, nullptr},
    {"switched_off", switched_off, METH_NOARGS, nullptr},
    {"clip_grad_value", reinterpret_cast<PyCFunction>(clip_value), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"engine_run_backward", reinterpret_cast<PyCFunction>(engine_run_backward), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"check_after_step", reinterpret_cast<PyCFunction>(guest_hook<check_after_step>), METH_FASTCALL, nullptr},
    {"optimizer_pre_hook", reinterpret_cast<PyCFunction>(guest_hook<pre_hook>), METH_FASTCALL, nullptr},
    {"clip_grads_with_norm", reinterpret_cast<PyCFunction>(before_clip), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

PyMethodDef* hook_methods() { return hook_table; }

}  // namespace finitude::bindings
