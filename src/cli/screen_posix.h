// What standard output is: a terminal or not, how wide, and whether it shows Unicode.
#pragma once

#include "cli/cli.h"

namespace finitude::cli {

Screen screen_of_stdout();

}  // namespace finitude::cli
