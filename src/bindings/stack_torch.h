// The Python stack at the start of a window, and the user's place in it. Thin over frames_python.h.
#pragma once

#include <Python.h>

#include <string>
#include <vector>

#include "record/trace.h"

namespace finitude::observe {
struct Places;
}

namespace finitude::bindings {

PyMethodDef* stack_methods();
bool stack_take();                    // false: stack_take_problem() says why
const std::string& stack_take_problem();
std::string stack_check();            // empty: the present stack can be put back
std::string stack_restore();          // empty: done
// The stack as it stands before a second run, for where that run goes another way than the first.
void stack_take_now();
bool stack_put_back_now();

// User frames, innermost first, and the module. Takes the GIL if this thread does not hold it.
bool current_place(std::vector<record::Frame>* frames, std::string* module);
// The same for the tracer.
const observe::Places& places();

}  // namespace finitude::bindings
