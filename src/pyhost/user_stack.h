// The place in the user's Python code: the frames of this thread. The GIL is held; no Python exception is left behind
// (one that was set stays set), and nothing is thrown.
#pragma once

#include <Python.h>

#include <string>
#include <vector>

#include "pyhost/frames_code.h"
#include "pyhost/python_compat.h"
#include "record/trace.h"

namespace finitude::bindings {

// Calls visit(frame, what is known of its code) for each frame of this thread, innermost first, until it returns false.
template <typename Visit>
void walk_stack(Visit visit) {
  for (RawFrame* frame = current_frame(); frame != nullptr; frame = outer_frame(frame)) {
    if (!visit(frame, code_info(frame_code(frame)))) return;
  }
}

// torch.optim.Optimizer, which is held for good. Null: none is known.
void set_optimizer_type(PyTypeObject* type) noexcept;

// User frames of this thread, innermost first; replaces what `out` held.
void user_stack(std::vector<record::Frame>* out, int max_frames) noexcept;
// The same as interned positions (see frame_at); returns how many were written. Known ones allocate nothing.
int user_stack_ids(FrameId* out, int max_frames) noexcept;
// Line of the innermost user frame, 0 where there is none.
int snapshot_user_line(std::string* file, std::string* function) noexcept;
// {name: value} of a function's frame object, new reference; null with a Python error. Before 3.13 `f_locals` is one
// dict for a frame, which locals() has given to the program as well, and which keeps what is in it: this reads the
// slots and leaves it alone.
PyObject* function_names(PyObject* frame);
// Is the innermost user frame a method of an optimizer? Not a function that is given one.
bool in_method_of_optimizer() noexcept;
// `self` of the nn.Module calls that are running, innermost first; borrowed.
void current_module_self(std::vector<PyObject*>* out) noexcept;

}  // namespace finitude::bindings
