// Where the program finitude-replay lies that came with this library.
#pragma once

#include <string>

namespace finitude::recorder {

// Its path: beside the library, or in bin beside lib, as `cmake --install` puts it. Empty where there is none.
std::string player();

}  // namespace finitude::recorder
