#include "gate/engine_call.h"

namespace finitude::bindings {

// torch passes accumulate_grad by keyword. Names in a call are interned, so a pointer comparison finds it; the second
// loop is for a caller that has built the name at run time. Without the keyword torch's default is false.
bool accumulates(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static PyObject* const name = PyUnicode_InternFromString("accumulate_grad");
  const Py_ssize_t count = kwnames != nullptr ? PyTuple_GET_SIZE(kwnames) : 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (PyTuple_GET_ITEM(kwnames, i) == name) return args[nargs + i] == Py_True;
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, i), "accumulate_grad") == 0)
      return args[nargs + i] == Py_True;
  }
  return false;
}

}  // namespace finitude::bindings
