// `report FILE`: a report as text, as one HTML page, or as checked JSON; of a run without one, what else it left.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "capture/capsule.h"
#include "capture/packed_capsule.h"
#include "cli/newest.h"
#include "incident/run_folder.h"
#include "incident/run_job.h"
#include "record/ring_posix.h"
#include "show/capsule_ops.h"
#include "show/json_file.h"
#include "show/printable.h"
#include "show/show.h"
#include "show/sparkline.h"
#include "store/courses_posix.h"

namespace finitude::cli {
namespace {

namespace fs = std::filesystem;
using incident::capsule_folders;
using incident::is_file;
using incident::is_run;
using incident::member_folders;
using incident::process_of;
using incident::put_state;
using incident::state_of;
using nlohmann::json;

constexpr std::size_t kStepsShown = 5, kCapsulesShown = 8;

// In every text of the document.
void replace(json& value, const std::string& from, const std::string& to) {
  if (value.is_string()) {
    std::string& text = value.get_ref<std::string&>();
    for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
      text.replace(at, from.size(), to);
  } else if (value.is_structured()) {
    for (json& one : value) replace(one, from, to);
  }
}

std::string folder_of(const std::string& file) {
  const std::string folder = fs::path(file).parent_path().string();
  return folder.empty() ? "." : folder;
}

// A table of the course of the run so far, of its first process that has a store; empty where it cannot be read.
std::string course_of(const std::string& folder, const Screen& screen) {
  std::vector<std::string> folders = member_folders(folder);
  folders.insert(folders.begin(), folder);
  const auto has_store = [](const std::string& one) { return is_file(one + "/store.sqlite"); };
  const auto found = std::find_if(folders.begin(), folders.end(), has_store);
  std::vector<store::Course> courses;
  if (found == folders.end() ||
      !store::read_courses(*found + "/store.sqlite", show::sparkline_columns(screen.width), &courses).ok())
    return {};
  std::string table = show::course_table(courses, {screen.colour, screen.width, screen.unicode});
  if (!table.empty()) table.insert(0, 1, '\n');
  return table;
}

// A line that names the job of the run; empty where none is known.
std::string job_line(const std::string& folder, const Screen& screen) {
  const std::string text = incident::job_text(incident::job_of(folder));
  return text.empty() ? text : show::printable("job: " + text, screen.unicode) + "\n";
}

// The report of a run, in its folder; not a copy of it elsewhere.
bool is_of_run(const std::string& file) {
  std::error_code error;
  return !show::is_capsule(file) && (fs::is_directory(file, error) || fs::path(file).filename() == "report.json");
}

int show_report(const ReportWords& words, const Console& console) {
  json report;
  const std::string& name = words.called.empty() ? words.file : words.called;
  if (const Status status = show::read_report_json(words.file, show::kMaxFile, report); !status.ok()) {
    console.complain(name + " " + status.why());
    return kUnreadable;
  }
  if (name != words.file) replace(report, words.file, name);
  std::error_code error;
  const bool is_packed = capture::is_packed_capsule(words.file);
  const std::string folder = fs::is_directory(words.file, error) ? words.file : folder_of(words.file);
  if (!is_packed) put_state(folder, &report);
  if (!words.html.empty()) {
    const std::string page = show::html(report);
    if (const Status status = base::write_whole(words.html, {page}); !status.ok()) {
      console.complain(words.html + " " + status.why());
      return kCannotHere;
    }
    console.note("page written to " + words.html);
  }
  if (words.json) {
    // ASCII only: a C1 control character inside a string must not reach a terminal.
    console.out << report.dump(2, ' ', true, json::error_handler_t::replace) << '\n';
  } else if (words.html.empty()) {
    console.out << show::terminal(report, {console.screen.colour, console.screen.width, console.screen.unicode});
    if (!is_packed && is_of_run(words.file)) console.out << job_line(folder, console.screen);
    // Of a run that has ended with an alarm the steps before it are in the report.
    const bool has_ended = std::string(state_of(folder, &report)) == "finished";
    if (!is_packed && is_of_run(words.file) && (report["alarms"].empty() || !has_ended))
      console.out << course_of(folder, console.screen);
  }
  if (!show::is_capsule(words.file)) return kDone;
  const std::vector<std::string> damage =
      capture::capsule_damage(words.file);  // of its files that a report does not read
  for (const std::string& why : damage) console.complain(name + ": " + why);
  return damage.empty() ? kDone : kUnreadable;
}

std::string state_sentence(const std::string& folder, const json& process) {
  const json pid = process.is_object() ? process.value("pid", json()) : json();
  const std::string who = "process" + (pid.is_number_integer() ? " " + pid.dump() : std::string());
  return who + (std::string(state_of(folder, nullptr)) == "running" ? " is running: there is no report yet"
                                                                    : " ended before it could write a report");
}

// The sign of a NaN says nothing.
double shown(double value) { return std::isnan(value) ? std::fabs(value) : value; }

// What the steps say of a run without a report.
int show_ring(const std::string& folder, const Console& console) {
  const std::string path = folder + "/steps.ring";
  record::RingContents ring;
  std::string error;
  if (!record::read_ring_file(path, &ring, &error)) {
    console.complain(path + " cannot be read: " + error);
    return kUnreadable;
  }
  const bool unicode = console.screen.unicode;
  const json process = process_of(folder, nullptr);
  console.out << show::printable(folder, unicode) << ": "
              << state_sentence(folder, process.is_object() ? process : json{{"pid", ring.pid}}) << '\n';
  console.out << job_line(folder, console.screen);
  const std::size_t held = ring.records.size();
  console.out << ring.overwritten + held << " steps were recorded" << (held > 0 ? ", the last of them:" : "") << '\n';
  for (std::size_t i = held - std::min(held, kStepsShown); i < held; ++i) {
    const record::StepRecord& step = ring.records[i];
    char line[256];
    std::snprintf(line, sizeof line,
                  "  step %llu   loss %.6g   largest gradient %.4g   lr %.4g   %.1f s after the start%s\n",
                  static_cast<unsigned long long>(step.step), shown(step.loss), shown(step.grad_absmax), shown(step.lr),
                  static_cast<double>(step.time_ns - ring.started_ns) * 1e-9,
                  (step.flags & record::kStepApplied) != 0 ? "" : "   not applied");
    console.out << line;
  }
  std::vector<std::string> capsules = capsule_folders(folder);
  capsules.resize(std::min(capsules.size(), kCapsulesShown));
  for (const std::string& capsule : capsules) console.out << "  capsule " << show::printable(capsule, unicode) << '\n';
  console.out << course_of(folder, console.screen);
  return kDone;
}

int report_at(const ReportWords& words, const Console& console, int levels);

// Of a run that left no report.json; nullopt: it has one, or is no run. levels: of folders of processes below it.
std::optional<int> without_report(const ReportWords& words, const Console& console, int levels) {
  const std::string& folder = words.file;
  std::error_code error;
  if (!fs::is_directory(folder, error) || fs::exists(folder + "/report.json", error) ||
      fs::exists(folder + "/capsule.json", error))
    return std::nullopt;
  const std::vector<std::string> members = levels > 0 ? member_folders(folder) : std::vector<std::string>();
  if ((words.json || !words.html.empty()) && is_run(folder)) {
    console.complain(folder + " has no report.json, which --json and --html need" +
                     (members.empty() ? "" : "; its processes may have one each, as " + members.front()));
    return kUnreadable;
  }
  if (is_file(folder + "/steps.ring")) return show_ring(folder, console);
  if (!members.empty()) {
    std::optional<int> code;
    for (const std::string& member : members) {
      if (!is_run(member)) continue;
      ReportWords one = words;
      one.file = member;
      code = std::max(code.value_or(kDone), report_at(one, console, levels - 1));
    }
    if (!code)
      console.complain(folder + ": none of its " + std::to_string(members.size()) +
                       " processes left a report that can be read");
    return code.value_or(kUnreadable);
  }
  if (!is_file(folder + "/run.json")) return std::nullopt;
  console.out << show::printable(folder, console.screen.unicode) << ": "
              << state_sentence(folder, process_of(folder, nullptr)) << "; it took no step\n";
  console.out << job_line(folder, console.screen);
  console.out << course_of(folder, console.screen);
  return kDone;
}

int report_at(const ReportWords& words, const Console& console, int levels) {
  if (const std::optional<int> code = without_report(words, console, levels)) return *code;
  return show_report(words, console);
}

}  // namespace

int report_command(const ReportWords& words, const Console& console) {
  if (!words.file.empty()) return report_at(words, console, 1);
  ReportWords newest = words;
  newest.file = take_newest(Wanted::kRun, console);
  return newest.file.empty() ? int{kUnreadable} : report_at(newest, console, 1);
}

}  // namespace finitude::cli
