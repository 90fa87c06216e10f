#include "show/json_file.h"

#include <filesystem>

#include "base/file.h"
#include "capture/capsule.h"
#include "capture/capsule_files.h"
#include "capture/own_checksum.h"
#include "capture/packed_capsule.h"
#include "show/capsule_report.h"
#include "show/printable.h"
#include "show/show.h"

namespace finitude::show {
namespace {

constexpr int kMaxDepth = 32;

Status corrupt(std::string why) { return why.empty() ? Status() : Status(StatusCode::kCorrupt, std::move(why)); }

// The report of the alarm that a capsule was made of; path: its folder, or a packed one.
Status read_capsule_report(const std::string& path, std::size_t limit, nlohmann::json& report) {
  capture::FileSource files;
  std::string bytes;
  nlohmann::json about;
  if (Status status = capture::open_capsule(path, &files); !status.ok()) return status;
  if (Status status = files(capture::kAboutFile, limit, &bytes); !status.ok()) return status;
  if (Status status = corrupt(parse_json(bytes, about)); !status.ok()) return status;
  if (Status status = capture::check_own_checksum(bytes, about); !status.ok()) return status;
  return corrupt(report_of_capsule(about, path, report));
}

}  // namespace

std::string read_file(const std::string& path, std::size_t limit, std::string& bytes) {
  return base::read_file(path, &bytes, limit).why();
}

std::string parse_json(std::string_view bytes, nlohmann::json& value) {
  bool deep = false;
  const auto shallow = [&deep](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    deep = deep || depth > kMaxDepth;
    return !deep;  // what lies deeper is not kept
  };
  try {
    value = nlohmann::json::parse(bytes, shallow);
  } catch (const nlohmann::json::exception& error) {
    const std::string_view what = error.what();
    const std::size_t name = what.find("] ");
    return "is not JSON: " + printable(name == std::string_view::npos ? what : what.substr(name + 2));
  }
  return deep ? "is nested deeper than " + std::to_string(kMaxDepth) : "";
}

std::string parse_report_json(std::string_view bytes, nlohmann::json& report) {
  std::string reason = parse_json(bytes, report);
  if (!reason.empty()) return reason;
  reason = problem(report);
  return reason.empty() ? reason : "is not a report of schema 1: " + printable(reason);
}

Status read_report_json(const std::string& path, std::size_t limit, nlohmann::json& report) {
  std::error_code error;
  std::string file = path, bytes;
  if (capture::is_packed_capsule(path)) return read_capsule_report(path, limit, report);
  if (std::filesystem::is_directory(path, error)) {
    file = path + "/report.json";
    if (!std::filesystem::exists(file, error)) {
      if (error) return Status(StatusCode::kUnreadable, "cannot be read: report.json: " + error.message());
      if (!std::filesystem::exists(path + "/capsule.json", error))
        return Status(StatusCode::kUnreadable, "is a folder without a report.json or capsule.json");
      return read_capsule_report(path, limit, report);
    }
  }
  if (Status status = base::read_file(file, &bytes, limit); !status.ok()) return status;
  const std::string why = parse_report_json(bytes, report);
  return corrupt(why.empty() || file == path ? why : "holds a report.json that " + why);
}

}  // namespace finitude::show
