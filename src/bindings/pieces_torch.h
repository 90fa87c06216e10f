// Single pieces of a healthy step, for bench/pieces.
#pragma once

#include <Python.h>

namespace finitude::bindings {

PyMethodDef* piece_methods();

}  // namespace finitude::bindings
