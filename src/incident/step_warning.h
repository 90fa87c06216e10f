// What is noticed of a training while its values are still finite (src/signal), as a report and events.jsonl hold it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "signal/warning.h"

namespace finitude::incident {

inline constexpr std::size_t kMaxWarnings = 10'000;  // of a report
inline constexpr int kMaxWarningLines = 40;          // that a run prints

// The value of --warnings: "all", "off", or names with commas.
bool is_wanted(signal::What what, std::string_view option) noexcept;
// Is it one of these?
bool is_warnings_option(std::string_view option) noexcept;

// An entry of `warnings` of docs/report.schema.json. names: of the parameters of its optimizer, in order.
nlohmann::ordered_json to_json(const signal::Warning& warning, const std::vector<std::string>& names,
                               const std::string& optimizer);

}  // namespace finitude::incident
