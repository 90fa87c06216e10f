// `list DIR`: the runs in a folder, the newest first, one line each; also running and killed ones.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "incident/run_folder.h"
#include "show/json_file.h"
#include "show/printable.h"
#include "show/show.h"

namespace finitude::cli {
namespace {

namespace fs = std::filesystem;
using incident::capsule_folders;
using incident::is_run;
using incident::kMaxEntries;
using incident::member_folders;
using incident::names_in;
using incident::state_of;
using incident::steps_of;
using nlohmann::json;

constexpr int kColumns = 200;

// What a line is made of; false: it has no report of that name that says so much.
bool read_report(const std::string& folder, json* report) {
  std::string bytes;
  if (!show::read_file(folder + "/report.json", show::kMaxFile, bytes).empty()) return false;
  if (!show::parse_json(bytes, *report).empty() || !report->is_object()) return false;
  const json watched = report->value("watched", json());
  return watched.is_object() && watched.value("steps", json()).is_number_unsigned() &&
         report->value("outcome", json()).is_string() && report->value("alarms", json()).is_array();
}

std::string reason_of(const json& report) {
  const json reason = report.value("reason", json());
  return reason.is_string() ? reason.get<std::string>() : std::string();
}

struct Line {
  std::string outcome, reason;
  std::uint64_t steps = 0;
  std::size_t alarms = 0;
};

std::string counted(std::size_t number, const std::string& word) {
  return std::to_string(number) + " " + word + (number == 1 ? "" : "s");
}

std::string text_of(const std::string& name, const std::string& folder, const Line& line, bool unicode) {
  std::string counts = line.alarms > 0 ? counted(line.alarms, "alarm") : "";
  if (const std::size_t capsules = capsule_folders(folder).size(); capsules > 0)
    counts += (counts.empty() ? "" : ", ") + counted(capsules, "capsule");
  char numbers[64];
  std::snprintf(numbers, sizeof numbers, "%7llu steps", static_cast<unsigned long long>(line.steps));
  std::string outcome = show::printable(line.outcome, unicode);
  outcome.resize(std::max<std::size_t>(outcome.size(), 9), ' ');
  std::string text = show::printable(name, unicode) + "  " + outcome + " " + numbers + "  " + counts +
                     (counts.empty() ? "" : "  ") + show::printable(line.reason, unicode);
  text.erase(text.find_last_not_of(' ') + 1);
  return show::cut(text, kColumns);
}

// Of a run that left no report.json that can be read.
Line of_members(const std::string& folder) {
  Line line;
  line.steps = steps_of(folder);
  line.outcome = state_of(folder, nullptr);
  std::error_code error;
  for (const std::string& member : member_folders(folder)) {
    json report;
    if (!read_report(member, &report) || !show::problem(report).empty() || report["alarms"].empty()) continue;
    line.alarms += report["alarms"].size();
    if (line.reason.empty()) line.reason = reason_of(report);
  }
  if (fs::exists(folder + "/report.json", error)) {
    line.outcome = "unknown";
    line.reason = "report.json cannot be read";
  }
  return line;
}

// One run; empty: it is none.
std::string line_of_readable(const std::string& name, const std::string& folder, bool unicode) {
  json report;
  if (!read_report(folder, &report))
    return is_run(folder) ? text_of(name, folder, of_members(folder), unicode) : std::string();
  const std::string state = state_of(folder, &report);
  Line line{state == "finished" ? report["outcome"].get<std::string>() : state, reason_of(report),
            report["watched"]["steps"].get<std::uint64_t>(), report["alarms"].size()};
  if (state != "finished") line.steps = std::max(line.steps, steps_of(folder));
  return text_of(name, folder, line, unicode);
}

// The same; what one run holds does not end the list of the others, even where it does not fit into memory.
std::string line_of(const std::string& name, const std::string& folder, bool unicode) {
  try {
    return line_of_readable(name, folder, unicode);
  } catch (const std::exception&) {
    return text_of(name, folder, {"unknown", "report.json cannot be read"}, unicode);
  }
}

}  // namespace

int list_command(const std::string& folder, const Console& console) {
  std::error_code error;
  bool all = true;
  std::vector<std::string> names;
  if (!fs::is_directory(folder, error)) {
    console.complain(folder + (fs::exists(folder, error) ? " is not a folder" : " does not exist"));
    return kUnreadable;
  }
  if (!names_in(folder, &names, &all)) {
    console.complain(folder + " cannot be read");
    return kUnreadable;
  }
  std::size_t listed = 0;
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    const std::string path = folder + "/" + *name;
    if (!fs::is_directory(path, error)) continue;
    const std::string line = line_of(*name, path, console.screen.unicode);
    if (line.empty()) continue;
    console.out << line << '\n';
    ++listed;
  }
  if (listed == 0) console.complain("no run in " + folder);
  if (!all)
    console.complain("only the first " + std::to_string(kMaxEntries) + " entries of " + folder + " were looked at");
  return kDone;
}

}  // namespace finitude::cli
