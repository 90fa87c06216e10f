// What backward is called on: each root is read once, and noted for the step that answers for it. All with the GIL
// held.
#pragma once

#include <Python.h>

namespace finitude::bindings {

// Before an outermost backward: reads the roots (tensor or tuple) and, for non-scalar ones, their grad arguments.
void note_roots(PyObject* roots, PyObject* grads);
// A backward inside a backward (reentrant checkpoint): its leaves belong to the loss outside.
void note_inner_roots(PyObject* roots);
// GradScaler.scale(loss): the unscaled loss is the one that counts.
void note_scaled(PyObject* loss);

}  // namespace finitude::bindings
