#include "gate/step_wrapper_torch.h"

#include <torch/csrc/autograd/python_variable.h>
#include <optional>

#include <utility>

#include "gate/gradients_torch.h"
#include "gate/param_groups_torch.h"
#include "gate/post_hook_torch.h"
#include "gate/post_step_scan_torch.h"
#include "gate/window_torch.h"
#include "observe/tracer_torch.h"
#include "pyhost/exception_barrier_torch.h"
#include "pyhost/is_tensor_torch.h"
#include "pyhost/meter.h"
#include "pyhost/saved_error_python.h"

// How a veto keeps a step from running. torch.optim wraps `step` of each class in a function (profile_hook_step) that
// runs pre-hooks, the class's step and post-hooks. A pre-hook cannot skip the step, so the step that the wrapper calls
// is replaced for one call, in the cell of its closure. If the wrapper is not torch's, the gradients are taken away
// for this call: torch.optim skips a parameter without a gradient.
namespace finitude::bindings {
namespace {

// Takes .grad off every parameter. `taken` owns the gradients until give_back_gradients. The accessor of C++ is used:
// to assign to .grad in Python may run code of a tensor subclass.
void take_gradients(OptimizerEntry& entry) {
  entry.taken.clear();
  for_each_parameter(entry.self, [&](std::uint32_t index, PyObject* p) {
    entry.taken.resize(index + 1);
    if (gradient_of(p) == nullptr) return;
    at::Tensor& grad = const_cast<at::Tensor&>(THPVariable_Unpack(p)).mutable_grad();
    entry.taken[index] = grad;
    grad = at::Tensor();
  });
}

// Only what was taken is given back, so that a gradient that the step made meanwhile is kept where none was taken.
void give_back_gradients(OptimizerEntry& entry) {
  for_each_parameter(entry.self, [&](std::uint32_t index, PyObject* p) {
    if (index >= entry.taken.size() || !entry.taken[index].defined() || !is_tensor_object(p)) return;
    const_cast<at::Tensor&>(THPVariable_Unpack(p)).mutable_grad() = entry.taken[index];
  });
  entry.taken.clear();
}

// Post-hook: gradients are given back after the rest of a vetoed step has run without them.
PyObject* restore_after_veto(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs >= 1) {
    if (OptimizerEntry* entry = find_entry(args[0])) give_back_gradients(*entry);
  }
  Py_RETURN_NONE;
}

PyMethodDef restore_def = {"finitude_give_back", reinterpret_cast<PyCFunction>(guest_hook<restore_after_veto>),
                           METH_FASTCALL, nullptr};

// Result of a step that was left by the exception of its closure: the loss that the exception holds, or None. Returns
// a new reference. Takes the error off the thread state.
PyObject* loss_of_raised() {
  SavedError raised;
  raised.drop();
  PyObject* exception = raised.exception();
  Object loss = exception != nullptr ? Object::take(PyObject_GetAttrString(exception, "loss")) : Object();
  PyErr_Clear();
  if (!loss) Py_RETURN_NONE;
  return loss.release();
}

// A step is counted once, however often its closure was evaluated. False as commit_window.
bool end_closure(OptimizerEntry& entry) {
  WindowVerdict verdict;
  verdict.grad_absmax = entry.closure_absmax;
  return commit_window(entry, verdict, ParamGroups(entry.self).lr(entry.lr));
}

// Replaces the `step` of a class outside torch.optim, for the life of the class: vetoes a call, and reads what it
// wrote, since nothing is known of the arithmetic of such a class. `original` is owned by the function object that
// calls this.
// The original runs outside of the barrier, so that its errors reach the program unchanged.
PyObject* guarded_step(PyObject* original, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  Live& l = live();
  OptimizerEntry* entry = nargs >= 1 && l.on ? find_entry(args[0]) : nullptr;
  if (entry == nullptr || entry->in_torch || entry->in_step > 0) {
    return PyObject_Vectorcall(original, args, static_cast<size_t>(nargs), kwnames);
  }
  if (entry->veto_now) {
    entry->veto_now = false;
    Py_RETURN_NONE;
  }
  const Metered hook(Piece::kHook);
  // A step of the same optimizer inside this one (super().step()) must pass through: see pre_hook.
  ++entry->in_step;
  ++l.steps_open;
  const std::uint64_t outside = std::exchange(l.step_serial, l.backward_serial);
  Object result;
  {
    const Metered program(Piece::kProgram);
    observe::Tracer::PhaseGuard phase(record::Phase::kOptimizer);
    result = Object::take(PyObject_Vectorcall(original, args, static_cast<size_t>(nargs), kwnames));
  }
  // Also after an error: the counters must not stay raised. `entry` is still valid, because the caller holds the
  // optimizer.
  l.step_serial = outside;
  --l.steps_open;
  --entry->in_step;
  const bool closure = std::exchange(entry->closure_open, false), leaving = std::exchange(entry->is_leaving, false);
  // leave_rest() made the closure raise to end the step: for the program that is a step that returned.
  if (!result) {
    release_undo(*entry);
    return leaving ? loss_of_raised() : nullptr;
  }
  as_guest([&] {
    std::optional<SavedError> raised;  // set again at the end: what follows runs Python code
    if (closure && !leaving && !end_closure(*entry)) raised.emplace();
    if (wrote_non_finite(*entry)) {
      if (!call_cold("on_written", args[0])) result = Object();
    }
    // Not before on_written, which may undo the step with the copy that finish_commit and release_undo drop.
    if (result) {
      if (!finish_commit(*entry)) result = Object();
    } else {
      const SavedError error;
      finish_commit(*entry);
    }
    release_undo(*entry);
    if (raised) result = Object();
  });
  return result.release();
}

PyMethodDef guarded_def = {"finitude_guarded_step", reinterpret_cast<PyCFunction>(guarded_step),
                           METH_FASTCALL | METH_KEYWORDS, nullptr};

// Replaces one call of the `step` of a class of torch.optim. pair: (that step, the cell of the wrapper). The
// original is put back into the cell before this returns, so that later calls run at full speed. `pair` owns both, and
// this object dies when the cell lets go of it; the caller holds a reference for the call.
PyObject* left_out_step(PyObject* pair, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* original = PyTuple_GET_ITEM(pair, 0);
  OptimizerEntry* entry = nargs >= 1 ? find_entry(args[0]) : nullptr;
  if (entry == nullptr || !entry->veto_now) {  // another optimizer of this class, in another thread
    return PyObject_Vectorcall(original, args, static_cast<size_t>(nargs), kwnames);
  }
  entry->veto_now = false;
  if (PyCell_Set(PyTuple_GET_ITEM(pair, 1), original) != 0) return nullptr;
  Py_RETURN_NONE;
}

PyMethodDef left_out_def = {"finitude_left_out_step", reinterpret_cast<PyCFunction>(left_out_step),
                            METH_FASTCALL | METH_KEYWORDS, nullptr};

// make_guarded_step(step) -> the function that replaces it. It holds a reference to `step`.
PyObject* make_guarded_step(PyObject*, PyObject* original) { return PyCFunction_New(&guarded_def, original); }

// leave_out_once(cell): the next call of the step in it is skipped, if it is one of a vetoed optimizer. The replacement
// is owned by the cell alone.
PyObject* leave_out_once(PyObject*, PyObject* cell) {
  if (!PyCell_Check(cell)) {
    PyErr_SetString(PyExc_TypeError, "leave_out_once(cell)");
    return nullptr;
  }
  const Object original = Object::take(PyCell_Get(cell));
  const Object pair = original ? Object::take(PyTuple_Pack(2, original.get(), cell)) : Object();
  const Object stand_in = pair ? Object::take(PyCFunction_New(&left_out_def, pair.get())) : Object();
  if (!stand_in || PyCell_Set(cell, stand_in.get()) != 0) return nullptr;
  Py_RETURN_NONE;
}

OptimizerEntry* entry_or_error(PyObject* optimizer) {
  OptimizerEntry* entry = find_entry(optimizer);
  if (entry == nullptr) PyErr_SetString(PyExc_KeyError, "this optimizer is not watched");
  return entry;
}

// take_rest(optimizer): the rest of its step runs without gradients. For torch.optim, whose step evaluates its closure
// first. Without the post-hook that gives gradients back none are taken: the program would lose them.
PyObject* take_rest(PyObject*, PyObject* optimizer) {
  OptimizerEntry* entry = entry_or_error(optimizer);
  if (entry == nullptr) return nullptr;
  take_gradients(*entry);
  entry->armed_restore = add_post_hook(entry->self, "finitude_restore", &restore_def);
  if (!entry->armed_restore) give_back_gradients(*entry);
  Py_RETURN_NONE;
}

// leave_rest(optimizer): the step ends by the exception that its closure raises next. If a copy was taken before the
// step, what it wrote until now is undone. For classes outside torch.optim, which may have moved the weights before
// they evaluate the closure (SAM).
PyObject* leave_rest(PyObject*, PyObject* optimizer) {
  OptimizerEntry* entry = entry_or_error(optimizer);
  if (entry == nullptr) return nullptr;
  entry->is_leaving = true;
  if (entry->undo_held) undo_step(*entry);
  release_undo(*entry);
  Py_RETURN_NONE;
}

// copy_before_step(optimizer) -> True: its step can be undone, whatever memory that takes.
PyObject* copy_before_step(PyObject*, PyObject* optimizer) {
  OptimizerEntry* entry = entry_or_error(optimizer);
  return entry != nullptr ? PyBool_FromLong(hold_undo(*entry)) : nullptr;
}

// wrote_since_copy(optimizer) -> True: its step has changed something since, or there is no copy.
PyObject* wrote_since_copy(PyObject*, PyObject* optimizer) {
  OptimizerEntry* entry = entry_or_error(optimizer);
  return entry != nullptr ? PyBool_FromLong(!entry->undo_held || !entry->undo->is_current()) : nullptr;
}

PyMethodDef step_wrapper_table[] = {
    {"make_guarded_step", make_guarded_step, METH_O, nullptr},
    {"leave_out_once", leave_out_once, METH_O, nullptr},
    {"take_rest", take_rest, METH_O, nullptr},
    {"leave_rest", leave_rest, METH_O, nullptr},
    {"copy_before_step", copy_before_step, METH_O, nullptr},
    {"wrote_since_copy", wrote_since_copy, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

// The call whose pre-hook runs now will not run its step. For a class outside torch.optim guarded_step is in place
// already and reads veto_now.
void veto(OptimizerEntry& entry) {
  entry.veto_now = true;
  if (!entry.in_torch) return;
  const Object r = call_cold("leave_out", entry.self);
  PyErr_Clear();
  if (r.get() == Py_True) return;
  entry.veto_now = false;  // a class whose wrapper is not torch's
  Object::take(take_rest(nullptr, entry.self));
}

// Without that closure, a step inside another one is judged by itself if a backward ran in between (step_serial
// differs): then it has gradients that the outer verdict does not cover.
bool is_judged_outside(OptimizerEntry* entry, bool has_closure) {
  const Live& l = live();
  if (l.steps_open == 0 || in_backward()) {
    if (entry != nullptr) entry->is_inner = false;
    return false;
  }
  if (!has_closure && l.step_serial != l.backward_serial) return false;
  if (entry != nullptr) {
    entry->is_inner = true;
    close_window(*entry);
  }
  return true;
}

PyMethodDef* step_wrapper_methods() { return step_wrapper_table; }

}  // namespace finitude::bindings
