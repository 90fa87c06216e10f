#include "cli/newest.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include <nlohmann/json.hpp>

#include "incident/run_folder.h"
#include "show/json_file.h"

namespace finitude::cli {
namespace {

namespace fs = std::filesystem;

std::uint64_t step_of(const std::string& capsule) {
  const std::string name = fs::path(capsule).filename().string();
  return std::strtoull(name.c_str() + std::min(name.size(), std::string("step-").size()), nullptr, 10);
}

// Of several ranks that of the first.
std::optional<std::string> newest_capsule(const std::string& run) {
  const std::vector<std::string> all = incident::capsule_folders(run);
  const auto newest = std::max_element(
      all.begin(), all.end(), [](const std::string& a, const std::string& b) { return step_of(a) < step_of(b); });
  if (newest == all.end()) return std::nullopt;
  return *newest;
}

bool has_trace(const std::string& run) try {
  nlohmann::json report;
  if (!show::read_report_json(run + "/report.json", show::kMaxFile, report).ok()) return false;
  const auto trace = report.find("trace");
  return trace != report.end() && trace->is_object();
} catch (const std::exception&) {  // what does not fit into memory is not read here
  return false;
}

// nullopt: the run holds nothing of that kind.
std::optional<std::string> held_by(const std::string& run, Wanted wanted) {
  if (wanted == Wanted::kRun || (wanted == Wanted::kRecording && has_trace(run))) return run;
  return newest_capsule(run);
}

const char* word_of(Wanted wanted) {
  return wanted == Wanted::kRun ? "run" : wanted == Wanted::kCapsule ? "capsule" : "traced run or capsule";
}

}  // namespace

std::string runs_folder() {
  const char* named = std::getenv("FINITUDE_RUNS");
  const std::string folder = named != nullptr && *named != '\0' ? named : "finitude-runs";
  return folder.starts_with('-') ? "./" + folder : folder;
}

std::string shown_folder(const std::string& folder) {
  std::error_code error;
  const std::string whole = fs::absolute(folder, error).lexically_normal().string();
  return error || whole.empty() ? folder : whole;
}

std::vector<std::string> runs_in(const std::string& folder, bool* all) {
  std::vector<std::string> names, runs;
  std::error_code error;
  if (all != nullptr) *all = true;
  if (!fs::is_directory(folder, error) || !incident::names_in(folder, &names, all)) return {};
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    const std::string path = folder + (folder.ends_with('/') ? "" : "/") + *name;
    if (fs::is_directory(path, error) && incident::is_run(path)) runs.push_back(path);
  }
  return runs;
}

std::vector<std::string> newest(Wanted wanted, std::size_t count) {
  std::vector<std::string> found;
  for (const std::string& run : runs_in(runs_folder())) {
    if (found.size() == count) break;
    if (std::optional<std::string> held = held_by(run, wanted)) found.push_back(std::move(*held));
  }
  return found.size() == count ? found : std::vector<std::string>();
}

std::string nothing_found(const std::string& folder, const std::string& what) {
  std::error_code error;
  const std::string state = !fs::exists(folder, error)         ? ", which does not exist"
                            : !fs::is_directory(folder, error) ? ", which is not a folder"
                                                               : "";
  return "no " + what + " found: looked in " + shown_folder(folder) + state +
         "; expected folders there, as `finitude run` makes them, each with a run.json, steps.ring or report.json";
}

std::string take_newest(Wanted wanted, const Console& console) {
  const std::vector<std::string> found = newest(wanted, 1);
  if (found.empty()) {
    console.complain(nothing_found(runs_folder(), word_of(wanted)) + ". Name one, or set FINITUDE_RUNS");
    return "";
  }
  console.note("no path given: took the newest " + std::string(word_of(wanted)) + ", " + found[0]);
  return found[0];
}

std::vector<std::string> take_newest_two(Wanted wanted, const Console& console) {
  std::vector<std::string> found = newest(wanted, 2);
  if (found.empty()) {
    console.complain("two are compared: " + nothing_found(runs_folder(), std::string("second ") + word_of(wanted)) +
                     ". Name both, or set FINITUDE_RUNS");
    return {};
  }
  std::reverse(found.begin(), found.end());
  console.note("no paths given: took the newest two, " + found[0] + " and " + found[1]);
  return found;
}

}  // namespace finitude::cli
