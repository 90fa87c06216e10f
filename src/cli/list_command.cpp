// `list DIR`: the runs in a folder, the newest first, one line each or as JSON; also running and killed ones.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <sstream>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/newest.h"
#include "incident/run_folder.h"
#include "incident/run_job.h"
#include "record/ring_posix.h"
#include "show/json_file.h"
#include "show/printable.h"
#include "show/read.h"
#include "show/show.h"

namespace finitude::cli {
namespace {

namespace fs = std::filesystem;
using incident::capsule_folders;
using incident::kMaxEntries;
using incident::member_folders;
using incident::names_in;
using incident::state_of;
using incident::steps_of;
using nlohmann::json;

constexpr std::size_t kMaxEvents = std::size_t{64} << 20;  // bytes: what a run writes at most
constexpr int kColumns = 200;                              // of a line that goes to no terminal
constexpr std::size_t kAligned = 48;                       // characters of a name, at most, that others are padded to

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

// One run. outcome: of its report, where it has ended; null: none is known. Others: null where not known.
struct Line {
  std::string state, reason;
  json outcome, started, seconds, last_good;
  json step, loss;  // the newest ones, of a run that has not ended by itself
  json job;         // of a scheduler or launcher
  std::uint64_t steps = 0, alarms = 0;
  std::size_t warnings = 0, capsules = 0;
};

std::string counted(std::size_t number, const std::string& word) {
  return std::to_string(number) + " " + word + (number == 1 ? "" : "s");
}

std::string name_of(const std::string& folder) { return fs::path(folder).filename().string(); }

std::size_t columns_of(const std::string& folder, bool unicode) {
  return static_cast<std::size_t>(show::columns(show::printable(name_of(folder), unicode)));
}

// name_width: what names are padded to.
std::string text_of(const std::string& folder, const Line& line, const Screen& screen, std::size_t name_width) {
  const bool unicode = screen.unicode;
  std::string counts = line.alarms > 0 ? counted(line.alarms, "alarm") : "";
  if (line.warnings > 0) counts += (counts.empty() ? "" : ", ") + counted(line.warnings, "warning");
  if (line.step.is_number()) {
    char now[64];
    std::snprintf(now, sizeof now, line.loss.is_number() ? "step %llu, loss %.4g" : "step %llu",
                  static_cast<unsigned long long>(line.step.get<std::uint64_t>()),
                  line.loss.is_number() ? line.loss.get<double>() : 0.0);
    counts += (counts.empty() ? "" : ", ") + std::string(now);
  }
  if (line.last_good.is_string())
    counts +=
        (counts.empty() ? "" : ", ") + ("last good " + show::printable(line.last_good.get<std::string>(), unicode));
  if (line.capsules > 0) counts += (counts.empty() ? "" : ", ") + counted(line.capsules, "capsule");
  if (const std::string job = incident::job_name(line.job); !job.empty())
    counts += (counts.empty() ? "" : ", ") + show::printable(job, unicode);
  char numbers[64];
  std::snprintf(numbers, sizeof numbers, "%7llu steps", static_cast<unsigned long long>(line.steps));
  std::string outcome =
      show::printable(line.outcome.is_string() ? line.outcome.get<std::string>() : line.state, unicode);
  outcome.resize(std::max<std::size_t>(outcome.size(), 9), ' ');
  std::string name = show::printable(name_of(folder), unicode);
  name.append(name_width - std::min(name_width, columns_of(folder, unicode)), ' ');
  std::string text = name + "  " + outcome + " " + numbers + "  " + counts + (counts.empty() ? "" : "  ") +
                     show::printable(line.reason, unicode);
  text.erase(text.find_last_not_of(' ') + 1);
  return show::cut(text, screen.terminal ? screen.width : kColumns);
}

json json_of(const std::string& folder, const Line& line) {
  return {
      {"run", name_of(folder)},  {"path", folder},          {"state", line.state},         {"outcome", line.outcome},
      {"reason", line.reason},   {"steps", line.steps},     {"alarms", line.alarms},       {"capsules", line.capsules},
      {"started", line.started}, {"seconds", line.seconds}, {"last_good", line.last_good}, {"step", line.step},
      {"loss", line.loss},       {"job", line.job},         {"warnings", line.warnings}};
}

// Of a run that has not ended, from its events: how often it warned, how many alarms it had, where its report is
// older, and the last good checkpoint, written before the first growth that was warned of; null: there is none.
void put_events(const std::string& folder, Line* line) {
  line->last_good = json();
  std::string bytes;
  if (!show::read_file(folder + "/events.jsonl", kMaxEvents, bytes).empty()) return;
  std::vector<std::pair<std::string, std::int64_t>> good;  // path and step; the newest last
  std::int64_t onset = std::numeric_limits<std::int64_t>::max();
  std::uint64_t alarms = 0;
  std::istringstream lines(bytes);
  for (std::string text; std::getline(lines, text);) {
    json event;
    const bool may_count = text.find("\"checkpoint\"") != std::string::npos ||
                           text.find("\"warning\"") != std::string::npos || text.find("\"alarm\"") != std::string::npos;
    if (!may_count || !show::parse_json(text, event).empty() || !event.is_object()) continue;
    const auto whole = [&](const char* key) {
      const json number = event.value(key, json());
      return number.is_number_integer() ? number.get<std::int64_t>() : -1;
    };
    if (event.value("kind", json()) == "alarm") alarms += event.value("explained", json()) == true;
    if (event.value("kind", json()) == "warning") ++line->warnings;
    if (event.value("kind", json()) == "warning" && event.value("what", json()) == "growth" && whole("since") >= 0)
      onset = std::min(onset, whole("since"));
    if (event.value("kind", json()) != "checkpoint" || event.value("written", json()) != true) continue;
    const json path = event.value("path", json());
    if (!path.is_string()) continue;
    std::erase_if(good, [&](const auto& one) { return one.first == path.get<std::string>(); });
    if (event.value("verdict", json()) == "good" && event.value("weights", json()) == true)
      good.emplace_back(path, whole("step"));
  }
  line->alarms = std::max(line->alarms, alarms);
  std::error_code error;
  while (!good.empty() && (good.back().second > onset || !fs::exists(good.back().first, error))) good.pop_back();
  if (!good.empty()) line->last_good = good.back().first;
}

// Where a run that has not ended by itself is, as its ring says, or that of its first process with one.
void put_newest_step(const std::string& folder, Line* line) {
  std::vector<std::string> folders = member_folders(folder);
  folders.insert(folders.begin(), folder);
  const auto found = std::find_if(folders.begin(), folders.end(), [](const std::string& one) {
    return incident::steps_in_ring(one + "/steps.ring") > 0;
  });
  record::RingContents ring;
  std::string error;
  if (found == folders.end() || !record::read_ring_file(*found + "/steps.ring", &ring, &error)) return;
  const auto newest = std::max_element(ring.records.begin(), ring.records.end(), [](const auto& a, const auto& b) {
    return std::pair(a.time_ns, a.step) < std::pair(b.time_ns, b.step);
  });
  if (newest == ring.records.end()) return;
  line->step = newest->step;
  if (std::isfinite(newest->loss)) line->loss = newest->loss;
}

// Of a run that left no report.json that can be read.
Line of_members(const std::string& folder) {
  Line line;
  line.steps = steps_of(folder);
  line.state = state_of(folder, nullptr);
  put_events(folder, &line);
  put_newest_step(folder, &line);
  std::error_code error;
  for (const std::string& member : member_folders(folder)) {
    json report;
    if (!read_report(member, &report) || !show::problem(report).empty() || report["alarms"].empty()) continue;
    line.alarms += show::alarm_count(report);
    if (line.reason.empty()) line.reason = reason_of(report);
  }
  if (fs::exists(folder + "/report.json", error)) {
    line.state = "unknown";
    line.reason = "report.json cannot be read";
  }
  return line;
}

Line of_report(const std::string& folder, const json& report) {
  Line line;
  line.state = state_of(folder, &report);
  line.reason = reason_of(report);
  line.steps = report["watched"]["steps"].get<std::uint64_t>();
  line.alarms = show::alarm_count(report);
  if (const json checkpoints = report.value("checkpoints", json::object());
      checkpoints.is_object() && checkpoints.value("last_good", json()).is_object()) {
    line.last_good = checkpoints["last_good"].value("checkpoint", json());
  }
  if (const json started = report.value("started", json()); started.is_string()) line.started = started;
  if (line.state == "finished") {
    if (const json warnings = report.value("warnings", json()); warnings.is_array()) line.warnings = warnings.size();
  } else {
    put_events(folder, &line);
    put_newest_step(folder, &line);
    line.steps = std::max(line.steps, steps_of(folder));
    return line;
  }
  line.outcome = report["outcome"];
  if (const json seconds = report.value("seconds", json()); seconds.is_number()) line.seconds = seconds;
  return line;
}

// What one run holds does not end the list of the others, even where it does not fit into memory.
Line line_of(const std::string& folder) {
  Line line;
  try {
    json report;
    line = read_report(folder, &report) ? of_report(folder, report) : of_members(folder);
  } catch (const std::exception&) {
    line = {};
    line.state = "unknown";
    line.reason = "report.json cannot be read";
  }
  line.capsules = capsule_folders(folder).size();
  line.job = incident::job_of(folder);
  return line;
}

}  // namespace

int list_command(const ListWords& words, const Console& console) {
  const std::string folder = words.folder.empty() ? runs_folder() : words.folder;
  const std::string how = ". Name another folder: finitude list DIR";
  std::error_code error;
  std::vector<std::string> names;
  if (!fs::is_directory(folder, error)) {
    console.complain(nothing_found(folder, "run") + how);
    return kUnreadable;
  }
  if (!names_in(folder, &names)) {
    console.complain(folder + " cannot be read");
    return kUnreadable;
  }
  bool all = true;
  json array = json::array();
  const std::vector<std::string> runs = runs_in(folder, &all);
  std::size_t name_width = 0;
  for (const std::string& run : runs)
    name_width = std::max(name_width, std::min(columns_of(run, console.screen.unicode), kAligned));
  for (const std::string& run : runs) {
    if (words.json) {
      array.push_back(json_of(run, line_of(run)));
    } else if (console.quiet) {
      console.out << show::printable(run, console.screen.unicode) << '\n';
    } else {
      console.out << text_of(run, line_of(run), console.screen, name_width) << '\n';
    }
  }
  // ASCII only: a control character inside a string must not reach a terminal.
  if (words.json) console.out << array.dump(2, ' ', true, json::error_handler_t::replace) << '\n';
  if (runs.empty()) console.note(nothing_found(folder, "run") + how);
  if (!all)
    console.complain("only the first " + std::to_string(kMaxEntries) + " entries of " + folder + " were looked at");
  return kDone;
}

}  // namespace finitude::cli
