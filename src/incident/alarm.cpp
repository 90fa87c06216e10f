#include "incident/alarm.h"

#include <utility>

#include "show/findings.h"

namespace finitude::incident {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

json series(const std::vector<double>& values) {
  json out = json::array();
  for (const double value : values) out.push_back(show::number(value));
  return out;
}

json to_json(const Cause& cause) {
  json out = {{"class", cause.name},
              {"confidence", cause.confidence},
              {"text", cause.text},
              {"experiments", cause.experiments}};
  if (cause.time) {
    out["tried_seconds"] = cause.time->tried_seconds;
    out["budget_seconds"] = cause.time->budget_seconds;
    out["out_of_time"] = cause.time->out_of_time;
  }
  return out;
}

json to_json(const Fix& fix) {
  json out = {{"text", fix.text}, {"verified", fix.verified}, {"file", fix.file}, {"line", fix.line}};
  if (!fix.tried.empty()) out["tried"] = fix.tried;
  if (!fix.outcome.empty()) out["outcome"] = fix.outcome;
  if (!fix.edit.is_null()) out["edit"] = fix.edit;
  return out;
}

Cause cause_of(json& found) {
  Cause cause;
  cause.name = found.at("class");
  cause.confidence = found.at("confidence");
  cause.text = found.at("text");
  cause.experiments = std::move(found.at("experiments"));
  if (found.contains("tried_seconds"))
    cause.time = {found["tried_seconds"], found.at("budget_seconds"), found.at("out_of_time")};
  return cause;
}

std::optional<Fix> fix_of(json& found) {
  if (found.is_null()) return std::nullopt;
  Fix fix;
  fix.text = found.at("text");
  fix.verified = found.at("verified");
  fix.file = found.at("file");
  fix.line = found.at("line");
  fix.tried = found.value("tried", "");
  fix.outcome = found.value("outcome", "");
  if (found.contains("edit")) fix.edit = std::move(found["edit"]);
  return fix;
}

json to_json(const Gradients& gradients) {
  json bad = json::array();
  for (const BadGradient& one : gradients.bad)
    bad.push_back({{"name", one.name}, {"nan", one.nan}, {"inf", one.inf}, {"numel", one.numel}});
  return {{"bad", bad}, {"clean", gradients.clean}};
}

}  // namespace

ordered_json to_json(const Alarm& alarm) {
  ordered_json out = {
      {"step", alarm.step},
      {"micro_batch", alarm.micro_batch},
      {"rank", alarm.rank},
      {"optimizer", alarm.optimizer},
      {"sink", {{"kind", alarm.sink.kind}, {"name", alarm.sink.name}}},
      {"weights", alarm.weights_damaged ? "damaged" : "clean"},
      {"rerun", alarm.rerun.outcome},
      {"rerun_by", alarm.rerun.by},
      {"rerun_verified", alarm.rerun.verified},
      {"rerun_text", alarm.rerun.text},
      {"births", alarm.births},
      {"cause", to_json(alarm.cause)},
      {"fix", alarm.fix ? to_json(*alarm.fix) : json()},
      {"capsule", alarm.capsule ? json(*alarm.capsule) : json()},
      {"harmless", alarm.harmless},
      {"text", alarm.text},
      {"loss", alarm.loss ? show::number(*alarm.loss) : json()},
      {"path", alarm.path},
      {"policy", alarm.policy},
      {"history", {{"loss", series(alarm.history.loss)}, {"grad_absmax", series(alarm.history.grad_absmax)}}}};
  if (alarm.ordinal) out["optimizer_ordinal"] = *alarm.ordinal;
  if (!alarm.level.empty()) out["level"] = alarm.level;
  if (!alarm.action.empty()) out["action"] = alarm.action;
  if (!alarm.onset.is_null()) out["onset"] = alarm.onset;
  if (alarm.gradients) out["gradients"] = to_json(*alarm.gradients);
  if (alarm.capsule_redacted) out["capsule_redacted"] = true;
  if (alarm.capsule_pending) out["capsule_pending"] = true;
  return out;
}

void Alarm::adopt(json& found) {
  cause = cause_of(found.at("cause"));
  fix = fix_of(found.at("fix"));
  births = std::move(found.at("births"));
  path = std::move(found.at("path"));
}

json bare_birth(const std::string& phase, const std::string& op) {
  return {{"phase", phase},
          {"op", op},
          {"file", ""},
          {"line", 0},
          {"source", ""},
          {"module", ""},
          {"node", ""},
          {"inputs", json::array()},
          {"outputs", json::array()},
          {"rows", json::array()}};
}

}  // namespace finitude::incident
