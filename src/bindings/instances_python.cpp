#include "bindings/instances_python.h"

#include <Python.h>

#include <unordered_map>

namespace py = pybind11;

namespace finitude::bindings {
namespace {

// By the order of inheritance alone: isinstance would ask an object's __class__, and issubclass a metaclass, which may run code.
bool is_any_of(PyTypeObject* type, const py::tuple& classes) {
  for (const py::handle wanted : classes) {
    if (PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(wanted.ptr())) != 0) return true;
  }
  return false;
}

// A program that has imported torch holds some 300,000 objects of a thousand classes: each class is judged once.
py::list instances(const py::tuple& classes) {
  for (const py::handle wanted : classes) {
    if (!PyType_Check(wanted.ptr())) throw py::type_error("instances() takes a tuple of classes");
  }
  const py::list all = py::module_::import("gc").attr("get_objects")();
  std::unordered_map<PyTypeObject*, bool> judged;
  PyTypeObject* last = nullptr;
  bool last_is = false;
  py::list found;
  const Py_ssize_t size = PyList_GET_SIZE(all.ptr());
  for (Py_ssize_t i = 0; i < size; ++i) {
    PyObject* const object = PyList_GET_ITEM(all.ptr(), i);
    PyTypeObject* const type = Py_TYPE(object);
    if (type != last) {
      const auto [known, is_new] = judged.try_emplace(type, false);
      if (is_new) known->second = is_any_of(type, classes);
      last = type;
      last_is = known->second;
    }
    if (last_is) found.append(py::reinterpret_borrow<py::object>(object));
  }
  return found;
}

}  // namespace

void define_instances(py::module_& m) {
  m.def("instances", &instances, py::arg("classes"),
        "Every object of one of `classes`, or a class derived from it, that the garbage collector tracks; by inheritance alone: runs no "
        "code of theirs.");
}

}  // namespace finitude::bindings
