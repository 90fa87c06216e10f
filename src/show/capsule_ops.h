// The operations of a captured step with their statistics, as the trace of a report says them.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace finitude::show {

// Of the folder of a capsule: its capsule.json and a list like `trace.ops` of a report (docs/format/report.md). Why
// there is none, or empty.
std::string ops_of_capsule(const std::string& folder, nlohmann::json& about, nlohmann::json& ops);

// Whether this is a folder with a capsule.json and no report.json.
bool is_capsule_folder(const std::string& path);

}  // namespace finitude::show
