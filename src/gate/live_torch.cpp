#include "gate/live_torch.h"

#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "gate/after_step_torch.h"
#include "gate/asked_torch.h"
#include "gate/dropped_torch.h"
#include "gate/guard_torch.h"
#include "gate/losses_torch.h"
#include "gate/scaler_torch.h"
#include "gate/stream_cuda_torch.h"
#include "gate/window_torch.h"
#include "gate/written_torch.h"
#include "observe/tensor_view_torch.h"
#include "observe/tracer_torch.h"
#include "pyhost/attributes_python.h"
#include "pyhost/guest_torch.h"
#include "pyhost/meter.h"
#include "rewind/hand_torch.h"
#include "rewind/jump_torch.h"
#include "rewind/rewind_torch.h"
#include "rewind/units_torch.h"
#include "standby/tape_level_torch.h"

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
  set_tape_level(0);
  try {
    (*the_off).why = why;
    (*the_off).is_failure = true;
    (*the_off).steps = live().counters.steps;
    say("finitude: switched off after an internal failure (" + (*the_off).why + "). Training goes on unwatched.\n");
  } catch (const std::exception&) {
  }
}

namespace {

constinit thread_local int engine_depth = 0;  // of nested calls of the engine that this thread has made

}  // namespace

bool in_backward() noexcept { return engine_depth > 0 || torch::autograd::get_current_graph_task_id() != -1; }

std::uint64_t this_thread() noexcept { return PyThreadState_GetID(PyThreadState_Get()); }

void note_thread(OptimizerEntry& entry) {
  constexpr std::size_t kMostThreads = 64;
  Live& l = live();
  entry.thread = this_thread();
  if (entry.thread == l.step_thread) [[likely]]
    return;
  if (std::find(l.threads.begin(), l.threads.end(), entry.thread) != l.threads.end())
    l.threads_take_turns = true;
  else if (l.threads.size() < kMostThreads)
    l.threads.push_back(entry.thread);
  l.step_thread = entry.thread;
}

OptimizerEntry* find_entry(PyObject* optimizer) noexcept {
  for (const auto& entry : live().optimizers) {
    if (entry->self == optimizer && PyWeakref_GetObject(entry->ref) == optimizer) return entry.get();
  }
  return nullptr;
}

namespace {

// A program that tries out many optimizers would leave thousands of entries to walk over in every step.
void forget_dead() {
  Live& l = live();
  const auto is_dead = [](const OptimizerEntry& e) { return PyWeakref_GetObject(e.ref) != e.self; };
  std::erase_if(l.owner, [&](const auto& item) { return is_dead(*item.second.first); });
  std::erase_if(l.optimizers, [&](const auto& e) {
    if (!is_dead(*e)) return false;
    forget_window_start_of(*e);
    Py_DECREF(e->ref);
    return true;
  });
}

}  // namespace

OptimizerEntry* new_entry(PyObject* optimizer) {
  forget_dead();
  forget_window_by_hand();
  PyObject* ref = PyWeakref_NewRef(optimizer, nullptr);
  if (ref == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  Live& l = live();
  auto entry = std::make_unique<OptimizerEntry>();
  entry->self = optimizer;
  entry->ref = ref;
  entry->ordinal = l.next_ordinal++;
  entry->class_name = Py_TYPE(optimizer)->tp_name;
  if (const auto dot = entry->class_name.rfind('.'); dot != std::string::npos) entry->class_name.erase(0, dot + 1);
  l.optimizers.push_back(std::move(entry));
  return l.optimizers.back().get();
}

namespace {

// Of a tensor of integers or booleans.
std::optional<double> whole_number(const c10::TensorImpl& tensor, const char* data) {
  const auto read = [data](auto value) {
    std::memcpy(&value, data, sizeof value);
    return static_cast<double>(value);
  };
  const caffe2::TypeMeta type = tensor.dtype();
  if (type == caffe2::TypeMeta::Make<std::int64_t>()) return read(std::int64_t{});
  if (type == caffe2::TypeMeta::Make<std::int32_t>()) return read(std::int32_t{});
  if (type == caffe2::TypeMeta::Make<std::int16_t>()) return read(std::int16_t{});
  if (type == caffe2::TypeMeta::Make<std::int8_t>()) return read(std::int8_t{});
  if (type == caffe2::TypeMeta::Make<std::uint8_t>() || type == caffe2::TypeMeta::Make<bool>())
    return read(std::uint8_t{});
  return std::nullopt;
}

}  // namespace

std::optional<double> number_on_cpu(PyObject* value) {
  observe::TensorView v;
  if (!THPVariable_Check(value) || !observe::view_of(*THPVariable_Unpack(value).unsafeGetTensorImpl(), &v) ||
      v.numel != 1)
    return std::nullopt;
  if (v.dtype == sense::DType::kOther) return whole_number(*THPVariable_Unpack(value).unsafeGetTensorImpl(), v.data);
  const sense::Health h = observe::full(v);
  return h.nan ? NAN : h.inf() ? INFINITY : h.max;
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
void tell_raised() {
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
    if (is_outermost && result != nullptr && l.on && !tell_asked_row()) Py_CLEAR(result);
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
  if (outermost && result != nullptr && l.on && !tell_dropped()) Py_CLEAR(result);
  if (outermost && result == nullptr && l.on) tell_raised();
  return result;
}

PyObject* engine_run_backward(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  const Live& l = live();
  return l.on && !in_backward() && l.optimizers.empty() ? backward_by_hand(&run_backward, args, nargs, kwnames)
                                                        : run_backward(self, args, nargs, kwnames);
}

// The step is not taken: counted, and its window closed.
void leave_out(OptimizerEntry& entry, const WindowVerdict& verdict, double lr, std::uint32_t flags) {
  record_step(entry, verdict, lr, flags);
  note_left_out(entry);
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
  tape_window_begins();
  Py_RETURN_NONE;
}

PyObject* tell_armed(PyObject* optimizer) {
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
    forget_window_start();
  }
  bool bad_start = false;  // its alarm has decided of this step, whatever the window holds
  if (entry == nullptr || !entry->first_done) {
    if (entry == nullptr) entry = new_entry(optimizer);
    if (entry == nullptr) {
      switch_off("an optimizer takes no weak reference");
      Py_RETURN_NONE;
    }
    entry->first_done = true;
    first_step_comes();
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
  if (entry->device && !tell_late(*entry, false))
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
        snapshot_window(*entry);  // the next window starts where the call that is left out returns
      if (!again) tape_window_begins();
      veto(*entry);
      Py_RETURN_NONE;
    }
  }
  if (l.steps_open > 0 && !in_backward()) {  // the step of the optimizer around it is the one that counts
    ++entry->step;
    const bool armed = begin_trace_of_target(*entry);
    close_window(*entry);
    if (armed) return tell_armed(optimizer);
    Py_RETURN_NONE;
  }
  if (closure) return begin_closure(*entry, args[1], args[2]);
  copy_before_jump(*entry);
  commit_window(*entry, verdict, lr);
  if (l.target_set && entry->ordinal == l.target_ordinal && entry->step == l.target_first) return tell_armed(optimizer);
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
      note_clipping(l.original_clip_value, call.data(), nargs, kwnames);
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

PyMethodDef methods[] = {
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

PyMethodDef* live_methods() { return methods; }

}  // namespace finitude::bindings
