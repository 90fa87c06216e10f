// A call of a tape as a program of its own: a page of Python that needs nothing but torch, for a bug report.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "capture/tape.h"
#include "finitude/status.h"
#include "replay/tape_player.h"

namespace finitude::replay {

// Where the operators of other libraries come from, as the caller named it.
struct ScriptSources {
  std::vector<std::string> modules;    // of Python
  std::vector<std::string> libraries;  // files
};

// Plays the tape twice: once to find the call in which the bad value was born (`about`, capsule.json, has what
// the report says of it), once to take what that call read. Small tensors become literals that come back bit
// by bit, larger ones go into a safetensors file beside `path`, with that suffix instead of .py. Not ok, and
// why: nothing was born, or a file cannot be written. sources: what the script loads where the call is no operator of
// torch. played: of the last replay; it may have failed.
Status write_script(const std::string& path, const capture::Tape& tape, const nlohmann::json& about,
                    const PlayOptions& options, const ScriptSources& sources, Played* played);

}  // namespace finitude::replay
