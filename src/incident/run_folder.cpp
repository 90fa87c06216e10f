#include "incident/run_folder.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <utility>

#include "base/process_posix.h"
#include "record/ring_format.h"
#include "show/json_file.h"
#include "show/read.h"

namespace finitude::incident {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// {rank, number} of the name of a process's folder: "rank-3", "pid-77-1".
bool is_member(std::string_view name, std::pair<bool, long>* order) {
  const bool rank = name.starts_with("rank-");
  if (!rank && !name.starts_with("pid-")) return false;
  name.remove_prefix(name.find('-') + 1);
  const std::string_view number = name.substr(0, name.find('-'));
  if (number.empty() || number.size() > 9 || number.find_first_not_of("0123456789") != std::string_view::npos)
    return false;
  *order = {!rank, rank ? std::stol(std::string(number)) : 0};
  return true;
}

bool is_alive(const json& process) {
  if (!process.is_object()) return false;
  const json pid = process.value("pid", json()), start = process.value("start", json()),
             machine = process.value("machine", json());
  return pid.is_number_unsigned() && machine.is_string() && pid.get<std::uint64_t>() < (1u << 31) &&
         base::is_alive(pid.get<std::int64_t>(), start.is_number_unsigned() ? start.get<std::uint64_t>() : 0,
                        machine.get<std::string>());
}

void settle(json& alarm) {
  std::error_code error;
  const std::string capsule = show::text(alarm, "capsule");
  const auto pending = alarm.find("capsule_pending");
  if (pending != alarm.end()) {
    const bool was = *pending == json(true);
    alarm.erase(pending);
    if (was && !is_file(capsule + "/capsule.json")) alarm["capsule"] = nullptr;
  }
  // Where the folder around it is not there either, it has been moved, or lies on another machine.
  if (show::text(alarm, "capsule").empty() || fs::exists(fs::symlink_status(capsule, error)) ||
      !fs::is_directory(fs::path(capsule).parent_path(), error))
    return;
  alarm["capsule"] = nullptr;
  const char* key = alarm.contains("kind") ? "text" : "rerun_text";  // an advisory has no second run
  const std::string before = show::text(alarm, key);
  alarm[key] = before + (before.empty() ? "" : "; ") + "its capsule was removed by --capsules, which keeps the newest";
}

}  // namespace

bool is_file(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

bool names_in(const std::string& folder, std::vector<std::string>* names, bool* all) {
  std::error_code error;
  names->clear();
  if (all != nullptr) *all = true;
  fs::directory_iterator entry(folder, error);
  for (const fs::directory_iterator end; !error && entry != end; entry.increment(error)) {
    if (names->size() == kMaxEntries) {
      if (all != nullptr) *all = false;
      break;
    }
    names->push_back(entry->path().filename().string());
  }
  std::sort(names->begin(), names->end());
  return !error;
}

std::vector<std::string> member_folders(const std::string& folder) {
  std::vector<std::string> names;
  names_in(folder, &names);
  std::vector<std::pair<std::pair<bool, long>, std::string>> found;
  std::pair<bool, long> order;
  for (const std::string& name : names) {
    if (is_member(name, &order)) found.emplace_back(order, name);
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> folders;
  for (const auto& [unused, name] : found) folders.push_back(folder + "/" + name);
  return folders;
}

std::vector<std::string> capsule_folders(const std::string& folder) {
  std::vector<std::string> folders = member_folders(folder), found, names;
  folders.insert(folders.begin(), folder);
  for (const std::string& one : folders) {
    names_in(one, &names);
    for (const std::string& name : names) {
      if (found.size() < kMaxCapsules && name.starts_with("step-") && is_file(one + "/" + name + "/capsule.json"))
        found.push_back(one + "/" + name);
    }
  }
  return found;
}

bool is_run(const std::string& folder) {
  for (const char* name : {"/report.json", "/steps.ring", "/run.json"}) {
    if (is_file(folder + name)) return true;
  }
  return !member_folders(folder).empty() || !capsule_folders(folder).empty();
}

std::uint64_t steps_in_ring(const std::string& path) {
  record::RingHeader header{};
  if (!is_file(path)) return 0;
  std::ifstream file(path, std::ios::binary);
  char bytes[sizeof header];
  if (!file.read(bytes, sizeof bytes)) return 0;
  std::memcpy(&header, bytes, sizeof bytes);
  return header.magic == record::kRingMagic && header.version == record::kRingVersion ? header.pushed : 0;
}

std::uint64_t steps_of(const std::string& folder) {
  std::uint64_t most = steps_in_ring(folder + "/steps.ring");
  for (const std::string& member : member_folders(folder)) most = std::max(most, steps_in_ring(member + "/steps.ring"));
  return most;
}

json process_of(const std::string& folder, const json* report) {
  if (report != nullptr && report->contains("under_way") && (*report)["under_way"].is_object())
    return (*report)["under_way"];
  std::string bytes;
  json started;
  if (!show::read_file(folder + "/run.json", show::kMaxFile, bytes).empty() ||
      !show::parse_json(bytes, started).empty() || !started.is_object())
    return {};
  const auto process = started.find("process");
  return process != started.end() && process->is_object() ? *process : json();
}

const char* state_of(const std::string& folder, const json* report) {
  if (report != nullptr && !report->contains("under_way")) return "finished";
  if (is_alive(process_of(folder, report))) return "running";
  if (report != nullptr) return "killed";
  const std::vector<std::string> members = member_folders(folder);
  const bool any = std::any_of(members.begin(), members.end(),
                               [](const std::string& member) { return is_alive(process_of(member, nullptr)); });
  return any ? "running" : "killed";
}

void put_state(const std::string& folder, json* report) {
  const std::string_view state = state_of(folder, report);
  if (state == "finished") return;
  (*report)["outcome"] = state;
  if (state != "running") settle_capsules(report);
}

void settle_capsules(json* report) {
  for (const char* key : {"alarms", "advisories"}) {
    const auto list = report->find(key);
    if (list == report->end() || !list->is_array()) continue;
    for (json& one : *list) {
      if (one.is_object()) settle(one);
    }
  }
}

}  // namespace finitude::incident
