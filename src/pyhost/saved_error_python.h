// A Python exception that is under way, saved while other Python code runs.
#pragma once

#include <Python.h>

#include "pyhost/object_python.h"

namespace finitude::bindings {

// Most of the C API must not be called while an exception is set: it may return the old error as its own, or lose it.
// GIL held. At the end the saved one is set again, or none if none was; what the code in between raised is gone.
class SavedError {
 public:
  SavedError() {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    hold(type, value, trace);
  }
  ~SavedError() {
    if (restores_) PyErr_Restore(type_.release(), value_.release(), trace_.release());
  }
  SavedError(const SavedError&) = delete;
  SavedError& operator=(const SavedError&) = delete;

  // The exception as an object with its traceback, borrowed; null: there was none.
  PyObject* exception() {
    PyObject *type = type_.release(), *value = value_.release(), *trace = trace_.release();
    PyErr_NormalizeException(&type, &value, &trace);
    if (value != nullptr && trace != nullptr) PyException_SetTraceback(value, trace);
    hold(type, value, trace);
    return value;
  }
  // It is not set again: what is set then stays set.
  void drop() { restores_ = false; }

 private:
  void hold(PyObject* type, PyObject* value, PyObject* trace) {
    type_ = Object::take(type);
    value_ = Object::take(value);
    trace_ = Object::take(trace);
  }
  Object type_, value_, trace_;
  bool restores_ = true;
};

}  // namespace finitude::bindings
