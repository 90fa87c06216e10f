// The `step` that an optimizer's class defines, inside the wrapper that torch puts around it: a veto leaves
// out its call.
//
// For a class outside torch.optim a stand-in is there for good, since what such a class wrote is looked at
// after every step; for one of torch.optim it is put in by a veto, for one call. GIL held; errors are left as
// Python errors.
#pragma once

#include "gate/state_torch.h"

namespace finitude::bindings {

// Skips the call that follows this optimizer's pre-hook.
void veto(OptimizerEntry& entry);

// Is this the step of an optimizer inside the step of another one that has been judged already? Its window is
// closed then. `has_closure`: its argument is the closure that the step outside was given.
bool is_judged_outside(OptimizerEntry* entry, bool has_closure);

PyMethodDef* step_wrapper_methods();

}  // namespace finitude::bindings
