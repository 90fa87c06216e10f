// `list DIR`: the reports below a folder of runs, newest first, one line each.
#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "show/json_file.h"
#include "show/printable.h"
#include "show/summary.h"

namespace finitude::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kDeepest = 4;
constexpr std::size_t kMaxEntries = 100'000, kMaxListed = std::size_t{32} << 20;

struct Found {
  std::string path;
  fs::file_time_type time;
};

std::string time_text(fs::file_time_type time) {
  const auto system = std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::file_clock::to_sys(time));
  const std::time_t seconds = std::chrono::system_clock::to_time_t(system);
  char out[32] = "";
  if (const std::tm* local = std::localtime(&seconds)) std::strftime(out, sizeof out, "%Y-%m-%d %H:%M", local);
  return out;
}

// Links are not followed, so the walk ends; folders that may not be read are passed over.
std::vector<Found> json_files(const std::string& folder, bool& all_seen, std::error_code& error) {
  std::vector<Found> found;
  fs::recursive_directory_iterator walk(folder, fs::directory_options::skip_permission_denied, error);
  if (error) return found;
  std::size_t seen = 0;
  for (const fs::recursive_directory_iterator end; walk != end; walk.increment(error)) {
    if (error) break;
    if (++seen > kMaxEntries) {
      all_seen = false;
      break;
    }
    std::error_code ignored;
    if (walk.depth() >= kDeepest) walk.disable_recursion_pending();
    if (walk->path().extension() != ".json" || !walk->is_regular_file(ignored) || walk->is_symlink(ignored)) continue;
    found.push_back({walk->path().string(), walk->last_write_time(ignored)});
  }
  error.clear();
  return found;
}

}  // namespace

int list_command(const std::string& folder, const Console& console) {
  std::error_code error;
  bool all_seen = true;
  if (!fs::is_directory(folder, error)) {
    console.complain(folder + (fs::exists(folder, error) ? " is not a folder" : " does not exist"));
    return kUnreadable;
  }
  std::vector<Found> files = json_files(folder, all_seen, error);
  if (error) {
    console.complain(folder + " cannot be read: " + error.message());
    return kUnreadable;
  }
  std::sort(files.begin(), files.end(),
            [](const Found& a, const Found& b) { return a.time != b.time ? a.time > b.time : a.path < b.path; });
  std::size_t listed = 0;
  for (const Found& file : files) {
    nlohmann::json report;
    const std::string reason = show::read_report_json(file.path, kMaxListed, report);
    const bool named_report = fs::path(file.path).filename() == "report.json";
    if (!reason.empty() && !named_report) continue;  // some other JSON, such as a capsule's
    const std::string line = reason.empty() ? show::summary(report) : "unreadable: it " + reason;
    console.out << time_text(file.time) << "  " << show::printable(line + "  " + file.path, console.screen.unicode)
                << '\n';
    ++listed;
  }
  if (listed == 0) console.err << "no report below " << show::printable(folder, console.screen.unicode) << '\n';
  if (!all_seen)
    console.complain("only the first " + std::to_string(kMaxEntries) + " entries of " + folder + " were looked at");
  return kDone;
}

}  // namespace finitude::cli
