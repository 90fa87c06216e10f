// The user's place in the program: frames, module, lines of TorchScript.
#pragma once

#include "record/trace.h"

namespace finitude::observe {
struct Places;
}

namespace finitude::bindings {

// User frames, innermost first, and the module. Takes the GIL if this thread does not hold it.
bool current_place(record::Stack* stack);
// The same for the tracer.
const observe::Places& places();

}  // namespace finitude::bindings
