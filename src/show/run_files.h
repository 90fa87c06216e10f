// `finitude diff` of two runs by their store.sqlite and run.json, and its text.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "show/show.h"

namespace finitude::show {

// The store of a run: its folder, or that of its first rank; empty: there is none.
std::string store_of_run(const std::string& path);
// Does the report of a run hold a trace? False also where it has no report yet.
bool has_trace(const std::string& path);

struct ComparedRuns {
  int code = 0;  // as of ComparedFiles
  std::string why;
  nlohmann::json document;
};
ComparedRuns compare_courses(const std::string& path_a, const std::string& path_b);

// The document as text.
std::string course_comparison(const nlohmann::json& document, const TerminalOptions& options);

}  // namespace finitude::show
