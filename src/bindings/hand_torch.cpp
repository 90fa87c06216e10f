#include "bindings/hand_torch.h"

#include <torch/csrc/autograd/python_variable.h>

#include "bindings/live_torch.h"
#include "bindings/snapshot_torch.h"
#include "observe/tensor_view_torch.h"

namespace finitude::bindings {
namespace {

bool wants_all = true;      // the Python side wants to be told of every call, not only of bad ones
std::uint64_t calls = 0;    // before the one under way
RngState step_rng;

bool any_bad(PyObject* roots) {
  for (Py_ssize_t i = 0; PyTuple_Check(roots) && i < PyTuple_GET_SIZE(roots); ++i) {
    PyObject* root = PyTuple_GET_ITEM(roots, i);
    observe::TensorView v;
    if (THPVariable_Check(root) && THPVariable_Unpack(root).defined() &&
        observe::view_of(*THPVariable_Unpack(root).unsafeGetTensorImpl(), &v) && observe::quick(v).bad) {
      return true;
    }
  }
  return false;
}

// hand_calls() -> how many such calls there were before the one under way.
PyObject* hand_calls(PyObject*, PyObject*) { return PyLong_FromUnsignedLongLong(calls); }

// hand_watch(all): tell of every call, or only of those with a root that is not finite.
PyObject* hand_watch(PyObject*, PyObject* all) {
  wants_all = PyObject_IsTrue(all) == 1;
  Py_RETURN_NONE;
}

PyObject* hand_reset(PyObject*, PyObject*) {
  wants_all = true;
  calls = 0;
  Py_RETURN_NONE;
}

// The generators as they are now; and as they were then.
PyObject* hand_take(PyObject*, PyObject*) {
  take_rng(&step_rng);
  Py_RETURN_NONE;
}

PyObject* hand_restore(PyObject*, PyObject*) {
  restore_rng(step_rng);
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"hand_calls", hand_calls, METH_NOARGS, nullptr},     {"hand_watch", hand_watch, METH_O, nullptr},
    {"hand_reset", hand_reset, METH_NOARGS, nullptr},     {"hand_take", hand_take, METH_NOARGS, nullptr},
    {"hand_restore", hand_restore, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool accumulates(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static PyObject* const name = PyUnicode_InternFromString("accumulate_grad");
  const Py_ssize_t count = kwnames != nullptr ? PyTuple_GET_SIZE(kwnames) : 0;
  for (Py_ssize_t i = 0; i < count; ++i) {  // names in a call are interned
    if (PyTuple_GET_ITEM(kwnames, i) == name) return args[nargs + i] == Py_True;
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, i), "accumulate_grad") == 0) return args[nargs + i] == Py_True;
  }
  return false;
}

PyObject* backward_by_hand(Vectorcall plain, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  const bool to_leaves = accumulates(args, nargs, kwnames);
  if (!to_leaves) ++live().counters.backward_calls;
  bool watched = false;
  if (nargs > 0 && (wants_all || any_bad(args[0]))) {
    // An empty tuple of inputs: all leaves below the roots.
    PyObject* inputs = nargs > 4 ? args[4] : Py_None;
    PyObject* r = call_cold("on_hand_begin", args[0], inputs, to_leaves ? Py_True : Py_False);
    if (r == nullptr) return nullptr;  // NonFiniteError
    watched = r == Py_True;
    Py_DECREF(r);
  }
  PyObject* result = plain(nullptr, args, nargs, kwnames);
  ++calls;
  if (!watched || result == nullptr) return result;
  PyObject* instead = call_cold("on_hand_end", result);
  if (instead == nullptr) {
    Py_DECREF(result);
    return nullptr;
  }
  if (instead == Py_None) {
    Py_DECREF(instead);
    return result;
  }
  Py_DECREF(result);
  return instead;
}

PyMethodDef* hand_methods() { return methods; }

}  // namespace finitude::bindings
