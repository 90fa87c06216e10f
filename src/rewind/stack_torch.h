// The Python stack at the start of a window. Thin over frames_python.h.
#pragma once

#include <Python.h>

#include <string>

namespace finitude::bindings {

class StackSnapshot;

PyMethodDef* stack_methods();
std::string stack_take(StackSnapshot* snapshot);     // empty: taken; else why not
std::string stack_check(StackSnapshot* snapshot);    // empty: the present stack can be put back
std::string stack_restore(StackSnapshot* snapshot);  // empty: done
// The stack as it stands before a second run, for where that run goes another way than the first. Held until it is put
// back or forgotten.
void stack_take_now();
std::string stack_check_now();  // empty: it can be put back from here
bool stack_put_back_now();
void stack_forget_now();

}  // namespace finitude::bindings
