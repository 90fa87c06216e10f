// The operations of a captured step with their statistics, as the trace of a report says them.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace finitude::show {

// Of a capsule: its capsule.json and a list like `trace.ops` of a report (docs/format/report.md). Why there is none, or
// empty.
std::string ops_of_capsule(const std::string& path, nlohmann::json& about, nlohmann::json& ops);

// Whether this is a folder with a capsule.json and no report.json, or a packed capsule.
bool is_capsule(const std::string& path);

}  // namespace finitude::show
