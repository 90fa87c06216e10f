// What of a process's environment a capsule keeps.
#pragma once

#include <nlohmann/json.hpp>

namespace finitude::incident {

// The variables that change what PyTorch computes, as far as they are set: name -> value.
nlohmann::json environment();

}  // namespace finitude::incident
