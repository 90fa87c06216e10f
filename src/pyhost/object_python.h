// One reference to a Python object, owned.
#pragma once

#include <Python.h>

#include <utility>

namespace finitude::bindings {

// GIL held wherever one is made, copied, assigned or destroyed, except where it is empty. Inline and without a check of
// the interpreter's state, unlike torch's THPObjectPtr: hooks of a healthy step use it.
class Object {
 public:
  Object() = default;
  // Takes over a new reference, as most of the C API returns; null gives an empty one.
  static Object take(PyObject* reference) { return Object(reference); }
  // A further reference to an object that another one owns.
  static Object share(PyObject* borrowed) {
    Py_XINCREF(borrowed);
    return Object(borrowed);
  }
  Object(const Object& other) : reference_(other.reference_) { Py_XINCREF(reference_); }
  Object(Object&& other) noexcept : reference_(std::exchange(other.reference_, nullptr)) {}
  // By value: the old reference dies with `other`, after the new one is in place. Its destructor may run Python code,
  // which then finds this object whole.
  Object& operator=(Object other) noexcept {
    std::swap(reference_, other.reference_);
    return *this;
  }
  ~Object() { Py_XDECREF(reference_); }

  PyObject* get() const { return reference_; }
  explicit operator bool() const { return reference_ != nullptr; }
  // Gives the reference away: the caller owns it from now on.
  PyObject* release() { return std::exchange(reference_, nullptr); }

 private:
  explicit Object(PyObject* reference) : reference_(reference) {}
  PyObject* reference_ = nullptr;
};

}  // namespace finitude::bindings
