// For the tests: the sample reports of tests/data/reports, found from this file's own place.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include <nlohmann/json.hpp>

namespace finitude::show {

inline std::filesystem::path samples_folder() {
  return std::filesystem::path(__FILE__).parent_path().parent_path().parent_path() / "tests" / "data" / "reports";
}

inline const std::map<std::string, nlohmann::json>& samples() {
  static const std::map<std::string, nlohmann::json> kAll = [] {
    std::map<std::string, nlohmann::json> all;
    for (const auto& entry : std::filesystem::directory_iterator(samples_folder())) {
      std::ifstream file(entry.path());
      all[entry.path().stem().string()] = nlohmann::json::parse(file);
    }
    return all;
  }();
  return kAll;
}

inline const nlohmann::json& sample(const std::string& name) { return samples().at(name); }

}  // namespace finitude::show
