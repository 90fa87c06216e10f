// The trace in a report as a run.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "compare/run.h"

namespace finitude::compare {

// `report` is a checked one (show::problem) with a trace. Left out are ops that enclose others, which stand
// for them, and views. Outputs that no storage tells of count as read.
Run run_of_trace(const nlohmann::json& report);

}  // namespace finitude::compare
