// What torch.utils.data's iterators are given in place of their own methods.
#pragma once

#include <Python.h>

namespace finitude::bindings {

// loader_methods(original __iter__, original __next__[, original _next_index]) -> the three methods, which keep the log
// of batches and call the original ones. GIL held.
PyObject* loader_methods(PyObject*, PyObject* const* args, Py_ssize_t nargs);

}  // namespace finitude::bindings
