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
#include "pyhost/meter.h"
#include "pyhost/number_torch.h"

namespace finitude::bindings {

namespace {

// Why the live half is off, and how many steps had been judged by then.
struct Off {
  bool is_failure = false;
  std::string why;
  std::uint64_t steps = 0;
};
base::Immortal<Off> the_off;

// On the program's standard error, where it has one: descriptor 2 may be another file by now.
void say(const std::string& text) {
  PyObject* stream = PySys_GetObject("stderr");
  if (stream == nullptr || stream == Py_None) return;
  Py_INCREF(stream);
  Py_XDECREF(PyObject_CallMethod(stream, "write", "s", text.c_str()));
  PyErr_Clear();
  Py_XDECREF(PyObject_CallMethod(stream, "flush", nullptr));
  PyErr_Clear();
  Py_DECREF(stream);
}

// switched_off() -> (why, steps judged before) after an internal failure of the gate, else None.
PyObject* switched_off(PyObject*, PyObject*) {
  if (!(*the_off).is_failure) Py_RETURN_NONE;
  return Py_BuildValue("(sK)", (*the_off).why.c_str(), static_cast<unsigned long long>((*the_off).steps));
}

}  // namespace

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

bool has_closure(PyObject* args, PyObject* kwargs) {
  if (PyTuple_Check(args) && PyTuple_GET_SIZE(args) > 1 && PyTuple_GET_ITEM(args, 1) != Py_None) return true;
  static PyObject* kClosure = PyUnicode_InternFromString("closure");
  if (kwargs == nullptr || !PyDict_Check(kwargs)) return false;
  if (PyDict_GET_SIZE(kwargs) == 0) return false;
  PyObject* value = PyDict_GetItem(kwargs, kClosure);
  return value != nullptr && value != Py_None;
}

bool is_found_inf(PyObject* optimizer) {
  static PyObject* kFoundInf = PyUnicode_InternFromString("found_inf");
  PyObject* value = own_attribute(optimizer, kFoundInf);
  const bool found = value != nullptr && number_on_cpu(value).value_or(0) != 0;
  Py_XDECREF(value);
  return found;
}

// A backward pass has raised: the Python side finds out whether it was for a value that is not finite. The error stays,
// unless it asks for another one.
void report_raised() {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (value != nullptr && trace != nullptr) PyException_SetTraceback(value, trace);
  if (value != nullptr) {
    PyObject* r = call_cold("on_backward_raised", value);
    if (r == nullptr) {  // NonFiniteError, or raised by a signal handler of the program: that is what it hears
      Py_XDECREF(type);
      Py_XDECREF(value);
      Py_XDECREF(trace);
      return;
    }
    Py_DECREF(r);
  }
  PyErr_Restore(type, value, trace);
}

// torch.autograd._engine_run_backward(tensors, grad_tensors, retain, create, inputs, allow_unreachable=,
// accumulate_grad=)
PyObject* run_backward(PyObject*, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  const Metered hook(Piece::kHook);
  Live& l = live();
  PyObject* original = l.original_backward;
  if (!l.on || nargs < 1 || !accumulates(args, nargs, kwnames)) {
    // autograd.grad: not a loss, but what it calls is below the outermost engine call.
    const bool is_outermost = l.on && !l.optimizers.empty() && !in_backward();
    bool is_asked = false;
    if (is_outermost) as_guest([&] { is_asked = note_asked(args, nargs); });
    ++engine_depth;
    const Metered program(Piece::kProgram);
    PyObject* result = PyObject_Vectorcall(original, args, static_cast<size_t>(nargs), kwnames);
    --engine_depth;
    if (is_asked && result != nullptr) as_guest([&] { note_answered(args, result); });
    if (is_outermost && result != nullptr && l.on && !report_asked_row()) Py_CLEAR(result);
    return result;
  }
  const bool outermost = !in_backward();
  if (outermost) {
    if (l.wake_on_backward) {
      l.wake_on_backward = false;
      PyObject* r = call_cold("on_backward", args[0]);
      if (r == nullptr) return nullptr;  // raised by a signal handler of the program
      Py_DECREF(r);
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
  PyObject* result;
  {
    // Sums of gradients run between the nodes, and are part of backward too.
    const Metered program(Piece::kProgram);
    const StreamedBackward streamed(outermost && l.devices != 0, l.closure_depth == 0 && !units_run_again());
    observe::Tracer::PhaseGuard phase(outermost ? record::Phase::kBackward : observe::Tracer::thread_phase());
    result = PyObject_Vectorcall(original, args, static_cast<size_t>(nargs), kwnames);
  }
  --engine_depth;
  if (outermost && result != nullptr) as_guest(after_backward);
  if (result != nullptr && PyErr_Occurred() != nullptr)
    Py_CLEAR(result);  // of a signal handler of the program, in on_left_bad
  if (outermost && result != nullptr && l.on && !report_dropped()) Py_CLEAR(result);
  if (outermost && result == nullptr && l.on) report_raised();
  return result;
}

PyObject* engine_run_backward(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  const Live& l = live();
  return l.on && !in_backward() && l.optimizers.empty() ? listeners().engine_call(&run_backward, args, nargs, kwnames)
                                                        : run_backward(self, args, nargs, kwnames);
}

// The step is not taken: counted, and its window closed.
void leave_out(OptimizerEntry& entry, const WindowVerdict& verdict, double lr, std::uint32_t flags) {
  record_step(entry, verdict, lr, flags);
  listeners().left_out(entry);
  ++live().counters.vetoes;
  ++live().counters.steps;
  ++entry.step;
  close_window(entry);
}

// A GradScaler has found an overflow: normal work. Its flag keeps the step from being applied.
PyObject* leave_to_scaler(OptimizerEntry& entry) {
  ++live().counters.scaler_skips;
  note_scaler_skip();
  record_step(entry, {}, ParamGroups(entry.self).lr(entry.lr), record::kStepScalerSkip);
  PyObject* r = call_cold("on_scaler_skip", entry.self);
  if (r == nullptr) return nullptr;
  Py_DECREF(r);
  close_window(entry);
  listeners().recording_restarts();
  Py_RETURN_NONE;
}

PyObject* report_armed(PyObject* optimizer) {
  PyObject* r = call_cold("on_armed", optimizer);
  if (r == nullptr) return nullptr;
  Py_DECREF(r);
  Py_RETURN_NONE;
}

// The arguments with the closure replaced by one that judges what it evaluated. What is computed in it is forward; what
// the optimizer computes itself is told by its methods on the stack. The guard around the step puts the phase back.
PyObject* begin_closure(OptimizerEntry& entry, PyObject* args, PyObject* kwargs) {
  if (!entry.in_torch) observe::Tracer::thread_phase() = record::Phase::kForward;
  PyObject* r = call_cold("on_closure", entry.self, args, kwargs);
  entry.closure_open = !entry.in_torch && r != nullptr && r != Py_None;
  return r;
}

// The optimizer is about to step: the one place where everything is decided.
PyObject* pre_hook(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  const Metered hook(Piece::kHook);
  Live& l = live();
  if (!l.on || nargs < 3) Py_RETURN_NONE;
  PyObject* optimizer = args[0];
  OptimizerEntry* entry = find_entry(optimizer);
  if (entry != nullptr && entry->in_step > 0) Py_RETURN_NONE;  // a step inside a step (super().step())
  const bool closure = has_closure(args[1], args[2]);
  if (is_judged_outside(entry, closure)) Py_RETURN_NONE;
  if (entry != nullptr) entry->veto_now = entry->closure_open = false;  // of a call that another hook kept from running
  if (entry != nullptr && (entry->armed_post || entry->armed_restore)) remove_stale_hooks(*entry);
  if (entry != nullptr && entry->snapshot_pending) {  // the step before raised: nobody knows where its window ended
    entry->snapshot_pending = false;
    listeners().start_lost();
  }
  bool bad_start = false;  // its alarm has decided of this step, whatever the window holds
  if (entry == nullptr || !entry->first_done) {
    if (entry == nullptr) entry = new_entry(optimizer);
    if (entry == nullptr) {
      switch_off("an optimizer takes no weak reference");
      Py_RETURN_NONE;
    }
    entry->first_done = true;
    listeners().first_step_comes(UINT64_MAX);
    PyObject* r = call_cold("first_seen", optimizer);
    if (r == nullptr) return nullptr;  // NonFiniteError: the state was bad before step 0
    bad_start = r == Py_True;
    Py_DECREF(r);
  }
  // A class outside torch.optim may use gradients that are there already before it evaluates its closure.
  if (closure && (entry->in_torch || entry->backwards == 0)) return begin_closure(*entry, args[1], args[2]);
  if (in_backward() && l.left_out_serial == l.backward_serial) {
    leave_out(*entry, {}, ParamGroups(optimizer).lr(entry->lr), record::kStepVetoed);
    veto(*entry);
    Py_RETURN_NONE;
  }
  if (entry->device && !report_late(*entry, false))
    return nullptr;  // an earlier step was bad, and the policy ends the program
  if (!entry->device && is_found_inf(optimizer)) return leave_to_scaler(*entry);
  WindowVerdict verdict;
  if (!judge_window(*entry, &verdict, l.closure_depth == 0)) {
    switch_off("param_groups could not be read");
    Py_RETURN_NONE;
  }
  if (verdict.scaler_skip) return leave_to_scaler(*entry);
  const double lr = verdict.lr;
  if (verdict.needs_cold || bad_start || l.closure_depth > 0) {
    PyObject* r = call_cold("on_window", optimizer);
    if (r == nullptr && units_run_again()) return nullptr;            // the second run has got as far as it was to go
    const bool again = r != nullptr && r != Py_None && r != Py_True;  // the same step runs a second time
    if (again)
      close_window(*entry);
    else if (r != Py_None)
      leave_out(*entry, verdict, lr, record::kStepVetoed | record::kStepAlarm);
    if (r == nullptr) return nullptr;  // NonFiniteError, out of optimizer.step
    const bool vetoed = r != Py_None;
    Py_DECREF(r);
    if (vetoed) {
      if (in_backward())
        l.left_out_serial = l.backward_serial;
      else if (!again)
        listeners().starts(*entry);  // the next window starts where the call that is left out returns
      if (!again) listeners().recording_restarts();
      veto(*entry);
      Py_RETURN_NONE;
    }
  }
  if (l.steps_open > 0 && !in_backward()) {  // the step of the optimizer around it is the one that counts
    ++entry->step;
    const bool armed = begin_trace_of_target(*entry);
    close_window(*entry);
    if (armed) return report_armed(optimizer);
    Py_RETURN_NONE;
  }
  if (closure) return begin_closure(*entry, args[1], args[2]);
  listeners().before_apply(*entry);
  commit_window(*entry, verdict, lr);
  if (l.target_set && entry->ordinal == l.target_ordinal && entry->step == l.target_first)
    return report_armed(optimizer);
  Py_RETURN_NONE;
}

// The hook behind an optimizer's step, METH_FASTCALL: (optimizer, args, kwargs). Reads what the step wrote where that
// was asked for, and calls _cold.on_written if it is not finite. Null: an exception of that call is set.
PyObject* check_after_step(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  const Metered hook(Piece::kHook);
  if (nargs < 1 || !live().on) Py_RETURN_NONE;
  OptimizerEntry* entry = find_entry(args[0]);
  observe::Tracer::thread_phase() = record::Phase::kForward;
  if (entry == nullptr) Py_RETURN_NONE;
  const bool bad = entry->looks_after && wrote_non_finite(*entry);
  PyObject* r = bad ? call_cold("on_written", args[0]) : Py_NewRef(Py_None);
  if (!bad && entry->clears_trace) {
    // Once for each optimizer: what its first step has made is there to be named.
    if (listeners().keeps_trace() && entry->step == 1 && r != nullptr) {
      Py_DECREF(r);
      r = call_cold("on_kept", args[0]);
    }
    listeners().trace_ended();
  }
  entry->clears_trace = false;
  finish_commit(*entry);
  if (r == nullptr) return nullptr;
  Py_DECREF(r);
  Py_RETURN_NONE;
}

PyObject* before_clip(PyObject*, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return clip_with_norm(args, nargs, kwnames);
}

// torch.nn.utils.clip_grad_value_(parameters, clip_value, foreach=None): looked at before the values are cut.
PyObject* clip_value(PyObject*, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  Live& l = live();
  if (!l.on || nargs < 1) return PyObject_Vectorcall(l.original_clip_value, args, static_cast<size_t>(nargs), kwnames);
  // A generator can be walked only once; one tensor is as good as a list of it.
  PyObject* list = THPVariable_Check(args[0]) ? Py_BuildValue("[O]", args[0]) : PySequence_List(args[0]);
  if (list == nullptr) return nullptr;
  as_guest([&] {
    scan_before_write(list);
    if (l.devices != 0) before_device_write(list, nullptr);
  });
  std::vector<PyObject*> call(args, args + nargs + (kwnames != nullptr ? PyTuple_GET_SIZE(kwnames) : 0));
  call[0] = list;
  PyObject* result = PyObject_Vectorcall(l.original_clip_value, call.data(), static_cast<size_t>(nargs), kwnames);
  if (result != nullptr) {
    as_guest([&] {
      listeners().clipped(l.original_clip_value, call.data(), nargs, kwnames, 0);
      if (l.devices != 0 && nargs >= 2 && keeps_finite(args[1])) after_device_write(list);
    });
  }
  Py_DECREF(list);
  return result;
}

PyObject* set_clip_value(PyObject*, PyObject* original) {
  Py_XSETREF(live().original_clip_value, Py_NewRef(original));
  Py_RETURN_NONE;
}

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
