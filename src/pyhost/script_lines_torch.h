// Lines of functions that torch.jit compiled. TorchScript's interpreter runs them, so they have no Python frame.
#pragma once

#include <string>
#include <vector>

#include "record/trace.h"

namespace finitude::bindings {

// Where this thread is in such a function, appends bytes that identify the place within it; else appends nothing.
void add_script_key(std::string* bytes) noexcept;
// Of which operator TorchScript's own formula for a derivative computes this thread's place: "sqrt"; empty: it is in
// none.
std::string script_derivative() noexcept;
// The user's lines of such functions that this thread is in, innermost first; at most `most`. The GIL is held.
std::vector<record::Frame> script_frames(std::size_t most) noexcept;

}  // namespace finitude::bindings
