#include "base/library_posix.h"

#include <dlfcn.h>

namespace finitude::base {

bool open_library(const char* name) noexcept { return dlopen(name, RTLD_NOW | RTLD_GLOBAL) != nullptr; }

}  // namespace finitude::base
