#include "gate/param_groups_torch.h"

#include <limits>
#include <string_view>

#include "pyhost/number_torch.h"

namespace finitude::bindings {
namespace {

// fractions.Fraction, decimal.Decimal, a scalar of NumPy: to convert one runs no code of the program. Another class
// may run its own, in the middle of the walk over a step.
bool is_library_number(PyObject* value) {
  PyTypeObject* const type = Py_TYPE(value);
  if (type->tp_as_number == nullptr || type->tp_as_number->nb_float == nullptr) return false;
  const std::string_view name = type->tp_name;
  if (name.starts_with("numpy.") || name == "decimal.Decimal") return true;
  static PyObject* const module = PyUnicode_InternFromString("__module__");
  PyObject* const of = name == "Fraction" ? PyDict_GetItemWithError(type->tp_dict, module) : nullptr;
  if (of == nullptr) PyErr_Clear();
  return of != nullptr && PyUnicode_Check(of) && PyUnicode_CompareWithASCIIString(of, "fractions") == 0;
}

// A learning rate. Integers and booleans count like other numbers; of tensors only those on the CPU are read.
std::optional<double> number_of(PyObject* value) {
  if (PyFloat_Check(value)) return PyFloat_AS_DOUBLE(value);
  if (!PyLong_Check(value) && !is_library_number(value)) return number_on_cpu(value);
  const Object number = Object::take(PyNumber_Float(value));
  if (!number) {
    PyErr_Clear();  // an integer beyond the range of a double
    return std::nullopt;
  }
  return PyFloat_AS_DOUBLE(number.get());
}

}  // namespace

// Owns the list, so that the program may assign another one meanwhile. Groups and parameters in it are borrowed.
ParamGroups::ParamGroups(PyObject* optimizer) {
  static PyObject* const name = PyUnicode_InternFromString("param_groups");
  groups_ = Object::take(PyObject_GetAttr(optimizer, name));
  if (!groups_)
    PyErr_Clear();
  else if (!PyList_Check(groups_.get()))
    groups_ = Object();
}

PyObject* ParamGroups::params_of(PyObject* group) {
  static PyObject* const name = PyUnicode_InternFromString("params");
  PyObject* params = PyDict_Check(group) ? PyDict_GetItemWithError(group, name) : nullptr;
  if (params == nullptr) PyErr_Clear();
  return params != nullptr && PyList_Check(params) ? params : nullptr;
}

double ParamGroups::lr(double fallback) const { return lr_of(0, fallback); }

std::size_t ParamGroups::more_lrs(double* rates, std::size_t most) const {
  const Py_ssize_t groups = groups_ ? PyList_GET_SIZE(groups_.get()) : 0;
  std::size_t count = 0;
  for (; count < most && static_cast<Py_ssize_t>(count) + 1 < groups; ++count)
    rates[count] = lr_of(static_cast<Py_ssize_t>(count) + 1, std::numeric_limits<double>::quiet_NaN());
  return count;
}

double ParamGroups::lr_of(Py_ssize_t index, double fallback) const {
  static PyObject* const name = PyUnicode_InternFromString("lr");
  PyObject* group = groups_ && PyList_GET_SIZE(groups_.get()) > index ? PyList_GET_ITEM(groups_.get(), index) : Py_None;
  PyObject* value = PyDict_Check(group) ? PyDict_GetItemWithError(group, name) : nullptr;
  if (value == nullptr) {
    PyErr_Clear();
    return fallback;
  }
  return number_of(value).value_or(fallback);
}

}  // namespace finitude::bindings
