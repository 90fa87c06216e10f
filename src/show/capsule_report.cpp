#include "show/capsule_report.h"

#include "show/printable.h"
#include "show/show.h"

namespace finitude::show {
namespace {

// With --redact places are skipped, which a report has to report.
void fill_in_places(nlohmann::json& alarm) {
  alarm["capsule_redacted"] = true;
  const auto births = alarm.find("births");
  if (births == alarm.end() || !births->is_array()) return;
  for (nlohmann::json& birth : *births) {
    if (!birth.is_object()) continue;
    for (const char* key : {"file", "line"}) birth.emplace(key, nullptr);
  }
}

}  // namespace

std::string report_of_capsule(const nlohmann::json& about, const std::string& folder, nlohmann::json& report) {
  const auto alarm = about.is_object() ? about.find("alarm") : about.end();
  // Of a step that was chosen, and is no alarm (--capsule-of-step).
  const bool is_healthy = about.is_object() && about.value("healthy", nlohmann::json()) == true;
  if (!about.is_object() || about.value("kind", nlohmann::json()) != "finitude capsule" ||
      (!is_healthy && (alarm == about.end() || !alarm->is_object())))
    return "is not that of a capsule";
  if (const nlohmann::json schema = about.value("schema", nlohmann::json()); schema != 1)
    return "is that of a capsule of schema " + printable(schema.dump()) + "; this program reads 1";
  report = {{"schema", 1},
            {"outcome", is_healthy ? "clean" : "alarm"},
            {"alarms", nlohmann::json::array()},
            {"advisories", nlohmann::json::array()}};
  for (const char* key : {"finitude", "torch", "python", "command", "script"}) {
    if (const auto found = about.find(key); found != about.end()) report[key] = *found;
  }
  report["started"] = about.value("created", nlohmann::json(""));
  nlohmann::json& watched = report["watched"] = {{"not_watched", nlohmann::json::array()}};
  for (const char* count :
       {"optimizers", "steps", "backward_calls", "gradients_scanned", "scaler_skips", "handled_by_script"})
    watched[count] = 0;
  if (const auto ranks = about.find("ranks"); ranks != about.end()) watched["ranks"] = *ranks;
  if (!is_healthy) {
    report["alarms"] = {*alarm};
    report["alarms"][0]["capsule"] = folder;
    if (about.value("redacted", nlohmann::json()) == true) fill_in_places(report["alarms"][0]);
  }
  const std::string reason = problem(report);
  return reason.empty() ? reason : "holds no report of schema 1: " + printable(reason);
}

}  // namespace finitude::show
