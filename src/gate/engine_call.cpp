#include "gate/engine_call.h"

namespace finitude::bindings {

bool accumulates(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static PyObject* const name = PyUnicode_InternFromString("accumulate_grad");
  const Py_ssize_t count = kwnames != nullptr ? PyTuple_GET_SIZE(kwnames) : 0;
  for (Py_ssize_t i = 0; i < count; ++i) {  // names in a call are interned
    if (PyTuple_GET_ITEM(kwnames, i) == name) return args[nargs + i] == Py_True;
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, i), "accumulate_grad") == 0)
      return args[nargs + i] == Py_True;
  }
  return false;
}

}  // namespace finitude::bindings
