// Files from outside, read with limits. Failures are values: one line saying why.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "finitude/status.h"

namespace finitude::show {

inline constexpr std::size_t kMaxFile = std::size_t{256} << 20;

// Why it could not be read, or empty; then `bytes` holds all of it.
std::string read_file(const std::string& path, std::size_t limit, std::string& bytes);

// Strict JSON (no NaN, no comments), nested at most 32 deep. Why it is none, or empty.
std::string parse_json(std::string_view bytes, nlohmann::json& value);

// A checked report out of JSON. Why it is none, or empty.
std::string parse_report_json(std::string_view bytes, nlohmann::json& report);

// A checked report, from a file, from report.json in a folder, or of a capsule, which is a folder too.
Status read_report_json(const std::string& path, std::size_t limit, nlohmann::json& report);

}  // namespace finitude::show
