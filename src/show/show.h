// Renderers of the report model (the JSON of docs/report.schema.json). They cannot disagree: all read the same
// document.
#pragma once

#include <cstddef>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace finitude::show {

inline constexpr std::size_t kMaxAlarms = 1000;

struct TerminalOptions {
  bool colour = false;
  int width = 80;       // columns; lines are wrapped to it; 0: no wrapping
  bool unicode = true;  // false: ASCII only
};

// The report as on the terminal, ending in a newline; one block per alarm, births and cause included.
std::string terminal(const nlohmann::json& report, const TerminalOptions& options);

// One self-contained file: no network, no script source from elsewhere; every string of the report is escaped. The page
// of web/, or tables where the build had no node.
std::string html(const nlohmann::json& report);

// A report that is not of schema 1, or malformed: the reason, in one line. Empty when fine. Bounded: rejects more than
// `kMaxAlarms` alarms, strings above 1 MiB and nesting above 32.
std::string problem(const nlohmann::json& report);

}  // namespace finitude::show
