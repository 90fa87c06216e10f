// The report document of a C++ program: docs/report.schema.json.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "incident/alarm.h"
#include "incident/report.h"
#include "recorder/folder_posix.h"

namespace finitude::recorder {

class Document {
 public:
  Document(std::string finitude, std::string torch);

  // Past what a report may hold alarms are counted only.
  void add_alarm(incident::Alarm alarm);
  // What came of a capsule that an alarm names as pending. why_not: empty where it is there.
  void settle_capsule(const std::string& folder, const std::string& why_not);
  // This alarm as it is now: what has come of its capsule meanwhile.
  incident::Alarm settled(const incident::Alarm& alarm) const;
  void add_advisory(const std::string& kind, std::uint64_t step, const std::string& text);
  void add_warning(nlohmann::json warning);  // past what a report may hold they are dropped
  nlohmann::json warnings() const { return warnings_; }
  void not_watched(const std::string& what);  // each once

  // zero_rows: of the end of the run; those of `many` steps are an advisory, shorter ones are counted.
  nlohmann::json whole(const incident::Counters& counters, const std::vector<incident::ZeroRow>& zero_rows,
                       std::uint64_t many) const;
  // With this alarm alone, as it is reported when it happens.
  nlohmann::json of_alarm(const incident::Alarm& alarm, const incident::Counters& counters) const;
  // The line that a run ends with. whole: its report; place: of report.json, or empty; page: of report.html as seen
  // from there, or empty.
  std::string closing_line(const nlohmann::json& whole, const std::string& place, const std::string& page) const;

  const ThisProcess& process() const { return process_; }

 private:
  nlohmann::json head(const incident::Counters& counters, std::optional<std::string> first_alarm,
                      std::uint64_t zero_gradients = 0) const;

  const std::string finitude_, torch_;
  const ThisProcess process_;
  const std::chrono::system_clock::time_point started_ = std::chrono::system_clock::now();
  std::vector<incident::Alarm> alarms_;
  std::vector<nlohmann::json> warnings_, advisories_;
  std::vector<std::string> not_watched_;
  std::uint64_t unlisted_ = 0;  // alarms past what a report holds
};

// RFC 3339, in UTC.
std::string time_text(std::chrono::system_clock::time_point time);

}  // namespace finitude::recorder
