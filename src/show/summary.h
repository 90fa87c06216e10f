// A report in one line, for lists of runs.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace finitude::show {

// "alarm      step 412: loss is NaN, log-of-zero". Raw text: make it printable before it is shown.
std::string summary(const nlohmann::json& report);

}  // namespace finitude::show
