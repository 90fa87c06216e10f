// The report document of a C++ program: docs/report.schema.json.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "recorder/folder_posix.h"

namespace finitude::recorder {

struct Counters {
  std::uint64_t optimizers = 0, steps = 0, closures = 0, gradients_scanned = 0, handled = 0;
};

class Document {
 public:
  Document(std::string finitude, std::string torch);

  // Past what a report may hold alarms are counted only.
  void add_alarm(nlohmann::json alarm);
  // What came of a capsule that an alarm names as pending. why_not: empty where it is there.
  void settle_capsule(const std::string& folder, const std::string& why_not);
  // This alarm as it is now: what has come of its capsule meanwhile.
  nlohmann::json settled(const nlohmann::json& alarm) const;
  void add_advisory(const std::string& kind, std::uint64_t step, const std::string& text);
  void not_watched(const std::string& what);  // each once

  nlohmann::json whole(const Counters& counters) const;
  // With this alarm alone, as it is reported when it happens.
  nlohmann::json of_alarm(const nlohmann::json& alarm, const Counters& counters) const;
  // The line that a run ends with. place: of report.json, or empty.
  std::string closing_line(const Counters& counters, const std::string& place) const;

  const ThisProcess& process() const { return process_; }

 private:
  const std::string finitude_, torch_;
  const ThisProcess process_;
  const std::chrono::system_clock::time_point started_ = std::chrono::system_clock::now();
  std::vector<nlohmann::json> alarms_, advisories_;
  std::vector<std::string> not_watched_;
  std::uint64_t alarms_left_out_ = 0;
};

// RFC 3339, in UTC.
std::string time_text(std::chrono::system_clock::time_point time);
// Of the environment what changes what is computed: name -> value.
nlohmann::json environment();

}  // namespace finitude::recorder
