// What replaces GradScaler.scale and GradScaler.step.
#pragma once

#include <Python.h>

namespace finitude::bindings {

// scaler_methods(original scale, step, unscale_) -> the three that stand in for them. With the GIL held.
PyObject* scaler_methods(PyObject*, PyObject* args);

}  // namespace finitude::bindings
