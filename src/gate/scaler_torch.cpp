#include "gate/scaler_torch.h"

#include <torch/csrc/autograd/python_variable.h>

#include "gate/dropped_torch.h"
#include "gate/gate_cuda_torch.h"
#include "gate/listeners.h"
#include "gate/losses_torch.h"
#include "gate/param_groups_torch.h"
#include "gate/second_run.h"
#include "gate/state_torch.h"
#include "gate/window_torch.h"
#include "pyhost/exception_barrier_torch.h"
#include "pyhost/number_torch.h"

namespace finitude::bindings {
namespace {

// May run code of a subclass of GradScaler. An error of it is cleared: the original call will raise it.
bool truthy_attribute(PyObject* object, const char* name) {
  PyObject* value = PyObject_GetAttrString(object, name);
  const bool result = value != nullptr && PyObject_IsTrue(value) == 1;
  Py_XDECREF(value);
  PyErr_Clear();
  return result;
}

// GradScaler.scale(self, outputs): the loss that counts is the unscaled one, since the scaled one overflows by design
// while the scale is searched. `outputs` may be a tensor, or a list or tuple of them. A disabled scaler passes its
// argument through, so the following backward notes it.
PyObject* scaler_scale(PyObject*, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  Live& l = live();
  if (l.on && nargs == 2 && truthy_attribute(args[0], "_enabled")) {
    as_guest([&] {
      if (THPVariable_Check(args[1])) {
        note_scaled(args[1]);
      } else if (PyList_Check(args[1]) || PyTuple_Check(args[1])) {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(args[1]); ++i) {
          PyObject* item = PySequence_Fast_GET_ITEM(args[1], i);
          if (THPVariable_Check(item)) note_scaled(item);
        }
      }
    });
  }
  return PyObject_Vectorcall(l.original_scale, args, static_cast<size_t>(nargs), kwnames);
}

// The scale, if it can be read without waiting for a device. 0: not known.
float loss_scale_of(PyObject* scaler) {
  PyObject* held = PyObject_GetAttrString(scaler, "_scale");
  PyErr_Clear();
  const double scale = held != nullptr ? number_on_cpu(held).value_or(0) : 0;
  Py_XDECREF(held);
  return static_cast<float>(scale);
}

// GradScaler.step(self, optimizer, ...). The scaler skips a step with bad gradients without calling optimizer.step, so
// the pre-hook of the gate never sees it: a bad unscaled loss is decided here before, and a skipped step is counted
// here afterwards. That it was skipped is seen by the counts, which did not move.
// `entry` stays valid over all calls, since the caller holds the optimizer.
PyObject* scaler_step(PyObject*, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  Live& l = live();
  OptimizerEntry* entry = nullptr;
  float scale = 0;
  if (l.on && nargs >= 2 && truthy_attribute(args[0], "_enabled")) {
    as_guest([&] {
      scale = loss_scale_of(args[0]);
      entry = find_entry(args[1]);
    });
  }
  if (entry == nullptr) return PyObject_Vectorcall(l.original_scaler_step, args, static_cast<size_t>(nargs), kwnames);
  // For the record of this step, whichever way this function is left.
  struct Scaled {
    explicit Scaled(float scale) { live().loss_scale = scale; }
    ~Scaled() { live().loss_scale = 0; }
  } const scaled(scale);
  bool bad = false;
  // Without a flag the scaler waits for the device itself.
  if (entry->device) as_guest([&] { resolve_losses(*entry, !entry->device->takes_flag); });
  // Also a loss that the step of another optimizer has answered for: that step was vetoed, and so is this one.
  for (const LossNote& note : l.losses) bad |= note.bad && note.serial > entry->window_start;
  if (bad) {
    PyObject* r = call_cold("on_scaler_step", args[1], args[0], Py_False);
    if (r == nullptr) return nullptr;
    const bool vetoed = r == Py_True;
    Py_DECREF(r);
    if (vetoed) {
      as_guest([&] {  // the next window starts where the vetoed call returns
        if (second_run_under_way() || in_backward()) return;
        listeners().starts(*entry);
        listeners().recording_restarts();
      });
      Py_RETURN_NONE;
    }
  }
  const std::uint64_t step = entry->step, skips = l.counters.scaler_skips;
  PyObject* result = PyObject_Vectorcall(l.original_scaler_step, args, static_cast<size_t>(nargs), kwnames);
  if (result == nullptr || entry->step != step || l.counters.scaler_skips != skips) return result;
  ++l.counters.scaler_skips;
  as_guest([&] {
    note_scaler_skip();
    record_step(*entry, {}, ParamGroups(entry->self).lr(entry->lr), record::kStepScalerSkip);
  });
  // The window is closed after the callback, which reads its facts, and also if it raises.
  PyObject* r = call_cold("on_scaler_step", args[1], args[0], Py_True);
  as_guest([&] {
    close_window(*entry);
    listeners().starts(*entry);
    listeners().recording_restarts();
  });
  if (r == nullptr) Py_CLEAR(result);
  Py_XDECREF(r);
  return result;
}

PyMethodDef scale_def = {"scale", reinterpret_cast<PyCFunction>(scaler_scale), METH_FASTCALL | METH_KEYWORDS, nullptr};
PyMethodDef step_def = {"step", reinterpret_cast<PyCFunction>(scaler_step), METH_FASTCALL | METH_KEYWORDS, nullptr};

}  // namespace

// The replacements are instance methods, so that they bind `self` as attributes of the class. References to the
// originals are kept until the next call.
PyObject* scaler_methods(PyObject*, PyObject* args) {
  PyObject *scale, *step;
  if (!PyArg_ParseTuple(args, "OO", &scale, &step)) return nullptr;
  Py_XSETREF(live().original_scale, Py_NewRef(scale));
  Py_XSETREF(live().original_scaler_step, Py_NewRef(step));
  PyObject* a = PyCFunction_New(&scale_def, nullptr);
  PyObject* b = PyCFunction_New(&step_def, nullptr);
  PyObject* result = Py_BuildValue("(NN)", PyInstanceMethod_New(a), PyInstanceMethod_New(b));
  Py_XDECREF(a);
  Py_XDECREF(b);
  return result;
}

}  // namespace finitude::bindings
