// What run.json says of how a run was made: command, git, packages, environment, optimizers.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace finitude::show {

// path: a run folder, or a file in it or in its folder of dumps. In the form of capsule.json, as compare/about.h takes
// it; empty where there is no run.json that can be read.
nlohmann::json about_of_run(const std::string& path);

}  // namespace finitude::show
