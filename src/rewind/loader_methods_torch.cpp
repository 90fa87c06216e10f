#include "rewind/loader_methods_torch.h"

#include "rewind/loader_torch.h"

namespace finitude::bindings {
namespace {

PyObject* loader_iter(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 1) {
    PyErr_SetString(PyExc_TypeError, "__iter__() takes no arguments");
    return nullptr;
  }
  return loader_log().iter(args[0]);
}

PyObject* loader_next(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 1) {
    PyErr_SetString(PyExc_TypeError, "__next__() takes no arguments");
    return nullptr;
  }
  return loader_log().next(args[0]);
}

PyObject* loader_next_index(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 1) {
    PyErr_SetString(PyExc_TypeError, "_next_index() takes no arguments");
    return nullptr;
  }
  return loader_log().next_index(args[0]);
}

PyMethodDef iter_def = {"__iter__", reinterpret_cast<PyCFunction>(loader_iter), METH_FASTCALL, nullptr};
PyMethodDef next_def = {"__next__", reinterpret_cast<PyCFunction>(loader_next), METH_FASTCALL, nullptr};
PyMethodDef index_def = {"_next_index", reinterpret_cast<PyCFunction>(loader_next_index), METH_FASTCALL, nullptr};

// A C function as a method of a Python class. A plain PyCFunction is no descriptor and would not get
// `self`; PyInstanceMethod adds that. A Python function would add a frame to the loader's tracebacks and to each batch.
Object as_method(PyMethodDef* def) {
  const Object function = Object::take(PyCFunction_New(def, nullptr));
  return function ? Object::take(PyInstanceMethod_New(function.get())) : Object();
}

}  // namespace

PyObject* loader_methods(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 2 && nargs != 3) {
    PyErr_SetString(PyExc_TypeError, "loader_methods(original __iter__, original __next__[, original _next_index])");
    return nullptr;
  }
  // The originals are set before any replacement exists, so that a replacement always has something to call.
  loader_log().original_iter = Object::share(args[0]);
  loader_log().original_next = Object::share(args[1]);
  if (nargs == 3) loader_log().original_next_index = Object::share(args[2]);
  const Object a = as_method(&iter_def), b = as_method(&next_def), c = as_method(&index_def);
  return a && b && c ? Py_BuildValue("(OOO)", a.get(), b.get(), c.get()) : nullptr;
}

}  // namespace finitude::bindings
