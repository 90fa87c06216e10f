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
#include "pyhost/is_tensor_torch.h"
#include "pyhost/number_torch.h"

namespace finitude::bindings {
namespace {

// May run code of a subclass of GradScaler. An error of it is cleared: the original call will raise it.
bool truthy_attribute(PyObject* object, const char* name) {
  const Object value = Object::take(PyObject_GetAttrString(object, name));
  const bool result = value && PyObject_IsTrue(value.get()) == 1;
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
      if (is_tensor_object(args[1])) {
        note_scaled(args[1]);
      } else if (PyList_Check(args[1]) || PyTuple_Check(args[1])) {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(args[1]); ++i) {
          PyObject* item = PySequence_Fast_GET_ITEM(args[1], i);
          if (is_tensor_object(item)) note_scaled(item);
        }
      }
    });
  }
  return PyObject_Vectorcall(l.original_scale.get(), args, static_cast<size_t>(nargs), kwnames);
}

// The scale, if it can be read without waiting for a device. 0: not known.
float loss_scale_of(PyObject* scaler) {
  const Object held = Object::take(PyObject_GetAttrString(scaler, "_scale"));
  PyErr_Clear();
  return static_cast<float>(held ? number_on_cpu(held.get()).value_or(0) : 0);
}

// GradScaler.step(self, optimizer, ...). The scaler skips a step with bad gradients without calling optimizer.step, so
// the pre-hook of the gate never sees it: a bad unscaled loss is decided here before, and a skipped step is counted
// here afterwards. That it was skipped is seen by the counts, which did not move.
// `entry` stays valid over all calls, since the caller holds the optimizer.
PyObject* scaler_step(PyObject*, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  Live& l = live();
  OptimizerEntry* entry = nullptr;
  float scale = 0;
  bool unscales = false;
  if (l.on && nargs >= 2 && truthy_attribute(args[0], "_enabled")) {
    as_guest([&] {
      scale = loss_scale_of(args[0]);
      entry = find_entry(args[1]);
    });
    // step unscales before it calls the optimizer's, also by an unscale_ that a class derived from GradScaler has; but
    // not for an optimizer that is given the scale.
    unscales = !truthy_attribute(args[1], "_step_supports_amp_scaling");
  }
  if (entry == nullptr)
    return PyObject_Vectorcall(l.original_scaler_step.get(), args, static_cast<size_t>(nargs), kwnames);
  // For the record of this step, whichever way this function is left.
  struct Scaled {
    explicit Scaled(float scale) { live().loss_scale = scale; }
    ~Scaled() { live().loss_scale = 0; }
  } const scaled(scale);
  entry->is_unscaled = entry->is_unscaled || unscales;
  bool bad = false;
  // Without a flag the scaler waits for the device itself.
  if (entry->device) as_guest([&] { resolve_losses(*entry, !entry->device->takes_flag); });
  // Also a loss that the step of another optimizer has answered for: that step was vetoed, and so is this one.
  for (const LossNote& note : l.losses) bad |= note.bad && note.serial > entry->window_start;
  if (bad) {
    const Object r = call_cold("on_scaler_step", args[1], args[0], Py_False);
    if (!r) return nullptr;
    if (r.get() == Py_True) {
      as_guest([&] {  // the next window starts where the vetoed call returns
        if (second_run_under_way() || in_backward()) return;
        listeners().starts(*entry);
        listeners().recording_restarts();
      });
      Py_RETURN_NONE;
    }
  }
  const std::uint64_t step = entry->step, skips = l.counters.scaler_skips;
  Object result =
      Object::take(PyObject_Vectorcall(l.original_scaler_step.get(), args, static_cast<size_t>(nargs), kwnames));
  if (!result || entry->step != step || l.counters.scaler_skips != skips) return result.release();
  ++l.counters.scaler_skips;
  as_guest([&] {
    note_scaler_skip();
    record_step(*entry, {}, ParamGroups(entry->self).lr(entry->lr), record::kStepScalerSkip);
  });
  // The window is closed after the callback, which reads its facts, and also if it raises.
  const Object r = call_cold("on_scaler_step", args[1], args[0], Py_True);
  as_guest([&] {
    close_window(*entry);
    listeners().starts(*entry);
    listeners().recording_restarts();
  });
  return r ? result.release() : nullptr;
}

// GradScaler.unscale_(self, optimizer): what is read of the gradients from here on has no scale.
PyObject* scaler_unscale(PyObject*, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  Live& l = live();
  PyObject* const result = PyObject_Vectorcall(l.original_unscale.get(), args, static_cast<size_t>(nargs), kwnames);
  if (result != nullptr && l.on && nargs >= 2 && truthy_attribute(args[0], "_enabled")) {
    as_guest([&] {
      if (OptimizerEntry* const entry = find_entry(args[1])) entry->is_unscaled = true;
    });
  }
  return result;
}

PyMethodDef scale_def = {"scale", reinterpret_cast<PyCFunction>(scaler_scale), METH_FASTCALL | METH_KEYWORDS, nullptr};
PyMethodDef unscale_def = {"unscale_", reinterpret_cast<PyCFunction>(scaler_unscale), METH_FASTCALL | METH_KEYWORDS,
                           nullptr};
PyMethodDef step_def = {"step", reinterpret_cast<PyCFunction>(scaler_step), METH_FASTCALL | METH_KEYWORDS, nullptr};

}  // namespace

// The replacements are instance methods, so that they bind `self` as attributes of the class. References to the
// originals are kept until the next call.
PyObject* scaler_methods(PyObject*, PyObject* args) {
  PyObject *scale, *step, *unscale;
  if (!PyArg_ParseTuple(args, "OOO", &scale, &step, &unscale)) return nullptr;
  live().original_scale = Object::share(scale);
  live().original_scaler_step = Object::share(step);
  live().original_unscale = Object::share(unscale);
  const Object a = Object::take(PyCFunction_New(&scale_def, nullptr));
  const Object b = Object::take(PyCFunction_New(&step_def, nullptr));
  const Object c = Object::take(PyCFunction_New(&unscale_def, nullptr));
  if (!a || !b || !c) return nullptr;
  return Py_BuildValue("(NNN)", PyInstanceMethod_New(a.get()), PyInstanceMethod_New(b.get()),
                       PyInstanceMethod_New(c.get()));
}

}  // namespace finitude::bindings
