// Lines about where, when and how two recordings were made, as far as that differs.
#pragma once

#include "show/layout.h"
#include "show/read.h"

namespace finitude::show {

// about: objects with group, key, a, b.
void about_lines(const Json& about, int hang, Layout* page);

}  // namespace finitude::show
