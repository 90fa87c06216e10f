// Attributes of the program's objects, looked at without `__dict__`: CPython 3.11 and 3.12 keep attributes without one,
// and once it has been made, every access of the program's to them is slower for good. Nor is __getattr__ called, which
// may be anything.
#pragma once

#include <Python.h>

#include "pyhost/object_python.h"

namespace finitude::bindings {

// Empty where there is none; no error is left.
inline Object own_attribute(PyObject* object, PyObject* name) {
  Object value = Object::take(_PyObject_GenericGetAttrWithDict(object, name, nullptr, /*suppress=*/1));
  if (!value) PyErr_Clear();
  return value;
}

// A class with __slots__ may refuse a new attribute; that is no error here.
inline void set_own_attribute(PyObject* object, PyObject* name, PyObject* value) {
  if (PyObject_GenericSetAttr(object, name, value) != 0) PyErr_Clear();
}

}  // namespace finitude::bindings
