// Whether an object is a tensor, by its type alone.
#pragma once

#include <Python.h>
#include <torch/csrc/autograd/python_variable.h>

namespace finitude::bindings {

// THPVariable_Check asks for `__class__` as well: a lazy object or a proxy of the program runs its own code then, and
// one that claims to be a tensor has no tensor inside that could be read.
inline bool is_tensor_object(PyObject* object) noexcept {
  if (THPVariableClass == nullptr) return false;
  return THPVariable_CheckExact(object) ||
         PyType_IsSubtype(Py_TYPE(object), reinterpret_cast<PyTypeObject*>(THPVariableClass)) != 0;
}

}  // namespace finitude::bindings
