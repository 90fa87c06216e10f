#include "bindings/param_groups_torch.h"

#include "bindings/guest_torch.h"

namespace finitude::bindings {

ParamGroups::ParamGroups(PyObject* optimizer) {
  static PyObject* const name = PyUnicode_InternFromString("param_groups");
  groups_ = PyObject_GetAttr(optimizer, name);
  if (groups_ == nullptr) PyErr_Clear();
  else if (!PyList_Check(groups_)) Py_CLEAR(groups_);
}

PyObject* ParamGroups::params_of(PyObject* group) {
  static PyObject* const name = PyUnicode_InternFromString("params");
  PyObject* params = PyDict_Check(group) ? PyDict_GetItemWithError(group, name) : nullptr;
  if (params == nullptr) PyErr_Clear();
  return params != nullptr && PyList_Check(params) ? params : nullptr;
}

double ParamGroups::lr(double fallback) const {
  static PyObject* const name = PyUnicode_InternFromString("lr");
  PyObject* group = groups_ != nullptr && PyList_GET_SIZE(groups_) > 0 ? PyList_GET_ITEM(groups_, 0) : Py_None;
  PyObject* value = PyDict_Check(group) ? PyDict_GetItemWithError(group, name) : nullptr;
  if (value == nullptr) {
    PyErr_Clear();
    return fallback;
  }
  return PyFloat_Check(value) ? PyFloat_AS_DOUBLE(value) : number_on_cpu(value).value_or(fallback);
}

}  // namespace finitude::bindings
