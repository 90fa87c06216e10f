// One reference to a Python object, owned. No other file counts references itself.
#pragma once

#include <Python.h>

#include <utility>
#include <vector>

namespace finitude::bindings {

// GIL held wherever one is made, copied, assigned or destroyed, except where it is empty. To drop the last reference
// may run code of the program: not while a lock is held or a list is walked over, and not in a destructor of a static,
// which runs after the interpreter has gone (base/immortal.h). Inline and without a check of the interpreter's state,
// unlike torch's THPObjectPtr: hooks of a healthy step use it.
class Object {
 public:
  constexpr Object() = default;
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

// A further reference that is never dropped, for what is known by its address until the process ends: a class, a code
// object. Null stays null.
template <typename T>
T* hold_for_good(T* borrowed) {
  Py_XINCREF(reinterpret_cast<PyObject*>(borrowed));
  return borrowed;
}

// Empties a list of what owns references, and keeps its memory. Code of the program that is run meanwhile may use the
// list, which is empty for it.
template <typename T>
void drop_all(std::vector<T>* list) {
  std::vector<T> dying;
  dying.swap(*list);
  dying.clear();
  if (list->empty() && list->capacity() < dying.capacity()) list->swap(dying);
}

}  // namespace finitude::bindings
