// The trace in a report as a run.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "compare/run.h"

namespace finitude::compare {

// `report` is a checked one (show::problem) with a trace. Skipped are views, ops that only hand on
// what others inside of them compute, and what is inside of the rest. Outputs that no storage reports count as read.
Run run_of_trace(const nlohmann::json& report);

}  // namespace finitude::compare
