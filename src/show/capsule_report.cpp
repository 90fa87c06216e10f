#include "show/capsule_report.h"

#include "show/printable.h"
#include "show/show.h"

namespace finitude::show {

std::string report_of_capsule(const nlohmann::json& about, const std::string& folder,
                              nlohmann::json& report) {
  const auto alarm = about.is_object() ? about.find("alarm") : about.end();
  if (!about.is_object() || about.value("kind", nlohmann::json()) != "finitude capsule" ||
      alarm == about.end() || !alarm->is_object())
    return "is not that of a capsule";
  report = {{"schema", 1}, {"outcome", "alarm"}, {"advisories", nlohmann::json::array()}};
  for (const char* key : {"finitude", "torch", "python", "command", "script"}) {
    if (const auto found = about.find(key); found != about.end()) report[key] = *found;
  }
  report["started"] = about.value("created", nlohmann::json(""));
  nlohmann::json& watched = report["watched"] = {{"not_watched", nlohmann::json::array()}};
  for (const char* count :
       {"optimizers", "steps", "backward_calls", "gradients_scanned", "scaler_skips", "handled_by_script"})
    watched[count] = 0;
  if (const auto ranks = about.find("ranks"); ranks != about.end()) watched["ranks"] = *ranks;
  report["alarms"] = {*alarm};
  report["alarms"][0]["capsule"] = folder;
  const std::string reason = problem(report);
  return reason.empty() ? reason : "holds no report of schema 1: " + printable(reason);
}

}  // namespace finitude::show
