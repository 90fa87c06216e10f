// Where torch calls us: before and after an engine call, an optimizer's step, clipping. GIL held.
#pragma once

#include <Python.h>

namespace finitude::bindings {

// Turns the gate off for good after an internal failure, and says so once on stderr.
void switch_off(const char* why) noexcept;

PyMethodDef* hook_methods();

}  // namespace finitude::bindings
