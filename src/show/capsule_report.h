// A capsule as a report: that of the one alarm that it is of. What else the run watched is not in a capsule.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace finitude::show {

// about: what its capsule.json holds, not checked yet; folder: where it lies. A checked report, or in one
// line why there is none.
std::string report_of_capsule(const nlohmann::json& about, const std::string& folder, nlohmann::json& report);

}  // namespace finitude::show
