// A tensor of the program's as a number.
#pragma once

#include <Python.h>

#include <optional>

namespace finitude::bindings {

// Of a tensor with one element that lies on the CPU; an infinity without its sign. Waits for no device.
std::optional<double> number_on_cpu(PyObject* value);

}  // namespace finitude::bindings
