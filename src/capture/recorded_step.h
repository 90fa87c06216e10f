// A recorded step by the path that somebody names.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "capture/tape.h"
#include "finitude/status.h"

namespace finitude::capture {

// A capsule (its folder, or packed), or the file of a tape that holds its inputs itself; of that nothing else is known,
// *about is
// {}.
Status read_recorded_step(const std::string& path, nlohmann::json* about, Tape* tape);

}  // namespace finitude::capture
