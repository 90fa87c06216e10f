// A call of torch.autograd._engine_run_backward.
#pragma once

#include <Python.h>

namespace finitude::bindings {

using Vectorcall = PyObject* (*)(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);

// Does an engine call add to the gradients of leaves (backward), or hand them out (autograd.grad)?
bool accumulates(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);

}  // namespace finitude::bindings
