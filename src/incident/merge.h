// One report of all processes of a run.
#pragma once

#include <vector>

#include <nlohmann/json.hpp>

#include "incident/member.h"

namespace finitude::incident {

// `own`, the report of the process that was started, with what the others left. Ranks take their steps together, so
// these count once; alarms are in the order of their steps, and one that a rank received names the rank that made the
// value. Without members: `own`. Throws nlohmann::json::exception where `own` is no report.
nlohmann::json merged(const nlohmann::json& own, const std::vector<Member>& members);

}  // namespace finitude::incident
