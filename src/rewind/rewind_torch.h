// The window that is open is run a second time: back to where it began, and back to the present afterwards.
#pragma once

#include <Python.h>

namespace finitude::bindings {

// Functions of the extension module, in a table that ends with null. All with the GIL held.
PyMethodDef* rewind_methods();

}  // namespace finitude::bindings
