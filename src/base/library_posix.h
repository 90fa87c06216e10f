// Shared libraries that are there on some machines only.
#pragma once

namespace finitude::base {

// Loads a library by its name for as long as the process lives, with its symbols for all. False where it is not there.
bool open_library(const char* name) noexcept;

}  // namespace finitude::base
