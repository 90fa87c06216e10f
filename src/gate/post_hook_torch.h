// The hook behind an optimizer's step, which is installed only for steps whose outcome is to be looked at.
#pragma once

#include <Python.h>

#include "gate/state_torch.h"

namespace finitude::bindings {

// def: null for the look at what a step wrote, which is one object for good, as torch.compile binds to it.
bool add_post_hook(PyObject* optimizer, const char* key, PyMethodDef* def);
void arm_post_hook(OptimizerEntry& entry);
// torch chains over the hook dictionary while our hook runs, so a hook cannot remove itself: it is taken out at the
// next call of this optimizer's step.
void remove_stale_hooks(OptimizerEntry& entry);

}  // namespace finitude::bindings
