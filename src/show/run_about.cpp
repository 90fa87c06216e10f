#include "show/run_about.h"

#include <filesystem>
#include <utility>

#include "show/json_file.h"

namespace finitude::show {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostRunBytes = std::size_t{8} << 20;
constexpr const char* kKept[] = {"torch",       "finitude", "python", "command", "script",   "git",
                                 "environment", "packages", "flags",  "seeds",   "on_alarm", "level"};

}  // namespace

nlohmann::json about_of_run(const std::string& path) {
  std::error_code error;
  fs::path folder = fs::absolute(path, error);
  if (!fs::is_directory(folder, error)) folder = folder.parent_path();
  if (folder.filename() == "dumps") folder = folder.parent_path();
  std::string bytes;
  nlohmann::json run, about = nlohmann::json::object();
  if (!fs::is_regular_file(folder / "run.json", error) ||
      !read_file((folder / "run.json").string(), kMostRunBytes, bytes).empty() || !parse_json(bytes, run).empty() ||
      !run.is_object())
    return about;
  for (const char* key : kKept) {
    if (run.contains(key) && !run[key].is_null()) about[key] = run[key];
  }
  for (const auto& [key, as] : {std::pair("optimizers", "optimizers"), std::pair("data", "data_sets")}) {
    if (run.contains(key)) about["start"][as] = run[key];
  }
  return about;
}

}  // namespace finitude::show
