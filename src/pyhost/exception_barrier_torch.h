// What every hook of ours in the program keeps to: nothing is thrown into its host.
#pragma once

#include <Python.h>
#include <c10/util/Exception.h>

#include <exception>

namespace finitude::bindings {

// What is done where something of ours has thrown: the module sets it once, to what switches the watch off.
using GuestFailed = void (*)(const char* why) noexcept;
inline constinit GuestFailed guest_failed = [](const char*) noexcept {};
// Cold, so that what leads here lies apart from what a healthy step runs.
[[gnu::cold, gnu::noinline]] inline void fail_as_guest(const char* why) noexcept { guest_failed(why); }

// Runs what is ours of a hook: an exception of it switches us off, and does not reach the program, to whose C it would
// be the end. False: there was one.
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

// A METH_FASTCALL function that may as well have returned None.
template <PyObject* (*hook)(PyObject*, PyObject* const*, Py_ssize_t)>
PyObject* guest_hook(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  PyObject* result = nullptr;
  if (as_guest([&] { result = hook(self, args, nargs); })) return result;
  Py_RETURN_NONE;
}

}  // namespace finitude::bindings
