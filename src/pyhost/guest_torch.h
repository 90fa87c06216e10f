// What every hook of ours in the program keeps to: nothing is thrown into its host.
#pragma once

#include <Python.h>
#include <c10/util/Exception.h>

#include <exception>
#include <optional>

#include "gate/live_torch.h"

namespace finitude::bindings {

// Runs what is ours of a hook: an exception of it switches us off, and does not reach the program, to whose C it would
// be the end. False: there was one.
template <typename Part>
bool as_guest(const Part& part) {
  try {
    part();
    return true;
  } catch (const c10::Error& e) {
    switch_off(e.what_without_backtrace());
  } catch (const std::exception& e) {
    switch_off(e.what());
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

// Of a tensor with one element that lies on the CPU; an infinity without its sign. Waits for no device.
std::optional<double> number_on_cpu(PyObject* value);

}  // namespace finitude::bindings
