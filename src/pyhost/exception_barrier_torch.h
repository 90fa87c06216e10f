// The barrier between our hooks and the program. CPython calls the hooks from C code that no C++ exception may cross:
// it would skip that code's cleanup or end the process.
#pragma once

#include <Python.h>
#include <c10/util/Exception.h>

#include <exception>

namespace finitude::bindings {

// Called where one of our functions has thrown. The module sets it once, to the function that switches the watch off;
// until then it does nothing. The GIL is held.
using GuestFailed = void (*)(const char* why) noexcept;
inline constinit GuestFailed guest_failed = [](const char*) noexcept {};
// Cold and not inlined, so that the code of a failure is not between the code of a healthy step.
[[gnu::cold, gnu::noinline]] inline void fail_as_guest(const char* why) noexcept { guest_failed(why); }

// Runs our part of a hook. An exception of it switches the watch off and does not reach the program. False: there was
// one. Exceptions that are not derived from std::exception are not expected of our code, and pass.
template <typename Part>
bool as_guest(const Part& part) {
  try {
    part();
    return true;
  } catch (const c10::Error& e) {
    fail_as_guest(e.what_without_backtrace());
  } catch (const std::exception& e) {
    fail_as_guest(e.what());
  }
  return false;
}

// A METH_FASTCALL function that returns None where our part has failed: the program then continues as if unwatched.
template <PyObject* (*hook)(PyObject*, PyObject* const*, Py_ssize_t)>
PyObject* guest_hook(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  PyObject* result = nullptr;
  if (as_guest([&] { result = hook(self, args, nargs); })) return result;
  Py_RETURN_NONE;
}

}  // namespace finitude::bindings
