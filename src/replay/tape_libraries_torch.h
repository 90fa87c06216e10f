// Libraries of operators that a replay needs: the user's own.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace finitude::replay {

// Namespaces in which `load` registers operators are added to `namespaces`, but for those that hold some already:
// what was there is called only where it was allowed. Throws what `load` throws.
void allow_what_registers(const std::function<void()>& load, std::vector<std::string>* namespaces);

// Loads shared libraries for as long as the process lives; their constructors run. Only paths that a person named may
// come here, never what is in a recording. Empty, or why one cannot be loaded. One thread at a time.
std::string load_operators(const std::vector<std::string>& paths, std::vector<std::string>* namespaces);

}  // namespace finitude::replay
