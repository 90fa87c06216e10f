// A Python exception that is under way, set aside while other Python code runs.
#pragma once

#include <Python.h>

namespace finitude::bindings {

// Most of the C API must not be called while an exception is set: it may return the old error as its own, or lose it.
// GIL held. What the code in between raised and left is gone.
class ErrorAside {
 public:
  ErrorAside() { PyErr_Fetch(&type_, &value_, &trace_); }
  ~ErrorAside() { PyErr_Restore(type_, value_, trace_); }
  ErrorAside(const ErrorAside&) = delete;
  ErrorAside& operator=(const ErrorAside&) = delete;

 private:
  PyObject *type_ = nullptr, *value_ = nullptr, *trace_ = nullptr;
};

}  // namespace finitude::bindings
