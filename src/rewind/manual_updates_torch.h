// Training without an optimizer: while the program has none, its engine calls are where a step begins.
#pragma once

#include <Python.h>

#include "gate/engine_call.h"

namespace finitude::bindings {

// An outermost engine call of a program that has no optimizer. The Python side is called where a root is not
// finite, or where it asked for all. Returns what the call returns, or what the Python side puts in its
// place.
PyObject* backward_by_hand(Vectorcall plain, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);

PyMethodDef* manual_update_methods();

}  // namespace finitude::bindings
