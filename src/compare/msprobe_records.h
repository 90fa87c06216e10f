// A dump.json of msprobe (tasks statistics and tensor, levels L0, L1 and mix) as records.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "compare/records.h"

namespace finitude::compare {

// An object with `data` that is no report. Calls are in the order of its keys.
bool is_msprobe_dump(const nlohmann::ordered_json& document);

// `stack`: its stack.json, or null: lines of the user's code. What is of another form is skipped.
std::vector<Record> records_of_msprobe(const nlohmann::ordered_json& document, const nlohmann::json& stack);

}  // namespace finitude::compare
