// The growth of magnitudes in a dump, as JSON and as a table.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "compare/records.h"
#include "show/show.h"

namespace finitude::show {

nlohmann::json growth_document(const std::vector<compare::Record>& records);
std::string growth_table(const nlohmann::json& document, const TerminalOptions& options);

// A record as a JSON line, in the form of a trace.
nlohmann::json record_line(const compare::Record& record);

}  // namespace finitude::show
