#include "bindings/rewind_torch.h"

#include <torch/csrc/autograd/python_variable.h>

#include "bindings/loader_torch.h"
#include "bindings/stack_torch.h"
#include "bindings/window_torch.h"

namespace finitude::bindings {
namespace {

struct WindowStart {
  OptimizerEntry* entry = nullptr;  // whose step ended the window before
  RngState rng;
  bool taken = false, stack_taken = false;
};

WindowStart& window_start() {
  static WindowStart* start = new WindowStart();
  return *start;
}

struct BeforeSecondRun {
  RngState rng;
  BufferSnapshot buffers;
};

BeforeSecondRun& before_second_run() {
  static BeforeSecondRun* before = new BeforeSecondRun();
  return *before;
}

bool second_run = false;
Counters counters_before;  // what the second run does is not counted twice

PyObject* loader_iter(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 1) {
    PyErr_SetString(PyExc_TypeError, "__iter__() takes no arguments");
    return nullptr;
  }
  return loader_log().iter(args[0]);
}

PyObject* loader_next(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 1) {
    PyErr_SetString(PyExc_TypeError, "__next__() takes no arguments");
    return nullptr;
  }
  return loader_log().next(args[0]);
}

PyObject* text_or_none(const std::string& text) {
  if (text.empty()) Py_RETURN_NONE;
  return PyUnicode_FromString(text.c_str());
}

// rewind_check(optimizer) -> None if the window can be run again by returning from this call, else the reason.
PyObject* rewind_check(PyObject*, PyObject* optimizer) {
  const WindowStart& start = window_start();
  if (live().depth > 0) return PyUnicode_FromString("the step is taken inside backward");
  if (!start.taken) return PyUnicode_FromString("this is the first step: there is no earlier step to return to");
  if (start.entry == nullptr || start.entry->self != optimizer) {
    return PyUnicode_FromString("another optimizer stepped last");
  }
  if (!start.stack_taken) return text_or_none(stack_take_problem().empty() ? "no snapshot of the stack" : stack_take_problem());
  return text_or_none(stack_check());
}

// rewind_begin() -> None, or the reason why it failed. Puts names, iterators, generators and buffers back.
PyObject* rewind_begin(PyObject*, PyObject*) {
  BeforeSecondRun& before = before_second_run();
  stack_take_now();
  take_rng(&before.rng);
  before.buffers = buffer_snapshot();
  before.buffers.take();
  const std::string why = stack_restore();
  if (!why.empty()) return PyUnicode_FromString(why.c_str());
  restore_rng(window_start().rng);
  buffer_snapshot().restore();
  loader_log().begin_replay();
  counters_before = live().counters;
  second_run = true;
  Py_RETURN_NONE;
}

// rewind_end() -> None if the second run used the same batches, else what was different.
PyObject* rewind_end(PyObject*, PyObject*) {
  const char* why = nullptr;
  if (second_run) live().counters = counters_before;
  second_run = false;
  loader_log().end_replay(&why);
  if (why == nullptr) Py_RETURN_NONE;
  return PyUnicode_FromString(why);
}

// rewind_undo() -> True: names, iterators, generators and buffers are those of before rewind_begin. For a second run that
// went another way than the first: what the script goes on with has to be the first.
PyObject* rewind_undo(PyObject*, PyObject*) {
  BeforeSecondRun& before = before_second_run();
  restore_rng(before.rng);
  before.buffers.restore();
  return PyBool_FromLong(stack_put_back_now());
}

// put_back(ready): buffers as at the start of the window, generators as right after its last batch was fetched. Where no
// loader was seen and the batch did not lie ready the generators stay: going back would draw the same bad batch again.
PyObject* put_back(PyObject*, PyObject* ready) {
  buffer_snapshot().restore();
  if (const RngState* state = loader_log().last_fetch()) restore_rng(*state);
  else if (PyObject_IsTrue(ready) == 1 && window_start().taken) restore_rng(window_start().rng);
  Py_RETURN_NONE;
}

PyMethodDef iter_def = {"__iter__", reinterpret_cast<PyCFunction>(loader_iter), METH_FASTCALL, nullptr};
PyMethodDef next_def = {"__next__", reinterpret_cast<PyCFunction>(loader_next), METH_FASTCALL, nullptr};

// A C function as a method of a Python class: no Python frame of ours on the loader's path.
PyObject* as_method(PyMethodDef* def) {
  PyObject* function = PyCFunction_New(def, nullptr);
  if (function == nullptr) return nullptr;
  PyObject* method = PyInstanceMethod_New(function);
  Py_DECREF(function);
  return method;
}

PyObject* loader_methods(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 2) {
    PyErr_SetString(PyExc_TypeError, "loader_methods(original __iter__, original __next__)");
    return nullptr;
  }
  Py_INCREF(args[0]);
  Py_INCREF(args[1]);
  Py_XSETREF(loader_log().original_iter, args[0]);
  Py_XSETREF(loader_log().original_next, args[1]);
  PyObject* a = as_method(&iter_def);
  PyObject* b = as_method(&next_def);
  return a != nullptr && b != nullptr ? Py_BuildValue("(NN)", a, b) : nullptr;
}

PyMethodDef methods[] = {
    {"rewind_check", rewind_check, METH_O, nullptr},
    {"rewind_begin", rewind_begin, METH_NOARGS, nullptr},
    {"rewind_end", rewind_end, METH_NOARGS, nullptr},
    {"rewind_undo", rewind_undo, METH_NOARGS, nullptr},
    {"put_back", put_back, METH_O, nullptr},
    {"loader_methods", reinterpret_cast<PyCFunction>(loader_methods), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

BufferSnapshot& buffer_snapshot() {
  static BufferSnapshot* snapshot = new BufferSnapshot();
  return *snapshot;
}

void forget_window_start() { window_start() = WindowStart(); }

void forget_window_start_of(const OptimizerEntry& entry) {
  if (window_start().entry == &entry) forget_window_start();
}

bool rewind_wants(const OptimizerEntry&) { return second_run; }

void snapshot_window(OptimizerEntry& entry) {
  if (!live().keeps_window_start) return;
  WindowStart& start = window_start();
  start.entry = &entry;
  take_rng(&start.rng);
  buffer_snapshot().take();
  loader_log().forget();
  start.stack_taken = stack_take();
  start.taken = true;
}

PyMethodDef* rewind_methods() { return methods; }

}  // namespace finitude::bindings
