// The hook behind an optimizer's step, which stands there only for steps whose outcome is to be looked at.
#pragma once

#include <Python.h>

#include "gate/live_torch.h"

namespace finitude::bindings {

// The hook itself, METH_FASTCALL: (optimizer, args, kwargs). Reads what the step wrote where that was asked for, and
// calls _cold.on_written if it is not finite. Null: an exception of that call is set.
PyObject* check_after_step(PyObject*, PyObject* const* args, Py_ssize_t nargs);

// def: null for the look at what a step wrote, which is one object for good, as torch.compile binds to it.
bool add_post_hook(PyObject* optimizer, const char* key, PyMethodDef* def);
void arm_post_hook(OptimizerEntry& entry);
// torch chains over the hook dictionary while our hook runs, so a hook cannot remove itself: it is taken out at the
// next call of this optimizer's step.
void remove_stale_hooks(OptimizerEntry& entry);

}  // namespace finitude::bindings
