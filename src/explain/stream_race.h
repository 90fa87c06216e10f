// What explains a step in which two streams of a device use the same memory and nothing orders them.
#pragma once

#include <optional>
#include <vector>

#include "explain/finding.h"
#include "record/stream_race.h"
#include "record/trace.h"

namespace finitude::explain {

// Of the first race; nothing where there is none. `born_in`: the second operation, which came too early.
std::optional<Finding> finding_of_races(const std::vector<record::StreamRace>& races, const record::Trace& trace);

}  // namespace finitude::explain
