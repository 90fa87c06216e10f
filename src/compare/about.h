// What two recordings say of themselves: where, when and how they were made.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace finitude::compare {

struct AboutDifference {
  // "settings", "versions", "machine", "program", "step", "flags", "seeds", "environment", "packages", "update"
  std::string group;
  std::string key, a, b;  // texts; empty: not there
};

using Settings = std::vector<std::pair<std::string, std::string>>;

// `a` and `b` are capsule.json or a report, of any content: what is of another form is skipped.
std::vector<AboutDifference> about_differences(const nlohmann::json& a, const Settings& settings_a,
                                               const nlohmann::json& b, const Settings& settings_b);

}  // namespace finitude::compare
