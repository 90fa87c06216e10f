#include <algorithm>

#include "show/json_file.h"
#include "show/report_reader.h"

namespace finitude {
namespace {

using show::Json;

std::int64_t whole(const Json& object, const char* key) {
  return static_cast<std::int64_t>(std::min<std::uint64_t>(show::count(object, key), INT64_MAX));
}

Place place_of(const Json& json) {
  return {show::text(json, "op"), show::text(json, "file"), whole(json, "line"), show::text(json, "source"),
          show::text(json, "module")};
}

Birth birth_of(const Json& json) {
  Birth birth{
      show::text(json, "phase"), place_of(json), show::text(json, "node"), place_of(show::at(json, "forward")), {}};
  for (const Json& row : show::list(json, "rows")) {
    if (row.is_number_unsigned()) birth.rows.push_back(static_cast<std::int64_t>(row.get<std::uint64_t>()));
  }
  return birth;
}

Cause cause_of(const Json& json) {
  Cause cause{show::text(json, "class"), show::text(json, "confidence"), show::text(json, "text"), {}};
  for (const Json& tried : show::list(json, "experiments")) {
    cause.experiments.push_back(
        {show::text(tried, "name"), show::text(tried, "outcome"), show::flag(tried, "confirms")});
  }
  return cause;
}

}  // namespace

Alarm show::alarm_of(const Json& json) {
  Alarm alarm;
  alarm.step = whole(json, "step");
  alarm.micro_batch = whole(json, "micro_batch");
  alarm.rank = whole(json, "rank");
  alarm.optimizer = show::text(json, "optimizer");
  alarm.sink_kind = show::text(show::at(json, "sink"), "kind");
  alarm.sink_name = show::text(show::at(json, "sink"), "name");
  alarm.weights_clean = show::text(json, "weights") == "clean";
  alarm.harmless = show::flag(json, "harmless");
  alarm.rerun = show::text(json, "rerun");
  alarm.rerun_by = show::text(json, "rerun_by");
  for (const Json& birth : show::list(json, "births")) alarm.births.push_back(birth_of(birth));
  alarm.cause = cause_of(show::at(json, "cause"));
  const Json& fix = show::at(json, "fix");
  alarm.fix = {show::text(fix, "text"), show::flag(fix, "verified"), show::text(fix, "file"), whole(fix, "line")};
  alarm.capsule = show::text(json, "capsule");
  alarm.capsule_pending = show::flag(json, "capsule_pending");
  return alarm;
}

namespace {

Report report_of(const Json& json) {
  Report report;
  report.outcome = show::text(json, "outcome");
  report.reason = show::text(json, "reason");
  const Json& watched = show::at(json, "watched");
  report.optimizers = show::count(watched, "optimizers");
  report.steps = show::count(watched, "steps");
  report.gradients_scanned = show::count(watched, "gradients_scanned");
  report.scaler_skips = show::count(watched, "scaler_skips");
  report.handled_by_script = show::count(watched, "handled_by_script");
  for (const Json& alarm : show::list(json, "alarms")) report.alarms.push_back(show::alarm_of(alarm));
  return report;
}

}  // namespace

Result<Report> parse_report(std::string_view text) {
  Json json;
  if (text.size() > show::kMaxFile) return Status(StatusCode::kTooLarge, "is larger than 256 MiB");
  const std::string reason = show::parse_report_json(text, json);
  if (!reason.empty()) return Status(StatusCode::kCorrupt, reason);
  return report_of(json);
}

Result<Report> read_report(const std::string& path) {
  Json json;
  if (const Status status = show::read_report_json(path, show::kMaxFile, json); !status.ok()) return status.of(path);
  return report_of(json);
}

}  // namespace finitude
