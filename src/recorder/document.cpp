#include "recorder/document.h"

#include <algorithm>
#include <ctime>

#include "incident/step_warning.h"
#include "show/show.h"

namespace finitude::recorder {

using incident::Alarm;
using nlohmann::json;

std::string time_text(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char text[40];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S+00:00", &utc);
  return text;
}

Document::Document(std::string finitude, std::string torch)
    : finitude_(std::move(finitude)), torch_(std::move(torch)), process_(this_process()) {}

void Document::add_alarm(Alarm alarm) {
  if (alarms_.size() < show::kMaxAlarms) return alarms_.push_back(std::move(alarm));
  ++unlisted_;
  alarms_.back() = std::move(alarm);  // the newest is listed: it may be what ends the program
}

void Document::settle_capsule(const std::string& folder, const std::string& why_not) {
  for (Alarm& alarm : alarms_) {
    if (!alarm.capsule_pending || alarm.capsule != folder) continue;
    alarm.capsule_pending = false;
    if (!why_not.empty()) alarm.capsule.reset();
  }
}

Alarm Document::settled(const Alarm& alarm) const {
  Alarm now = alarm;
  if (!alarm.capsule) return now;
  const auto is_it = [&](const Alarm& one) { return one.step == alarm.step && one.optimizer == alarm.optimizer; };
  const auto found = std::find_if(alarms_.rbegin(), alarms_.rend(), is_it);
  if (found == alarms_.rend()) return now;
  now.capsule = found->capsule;
  now.capsule_pending = found->capsule_pending;
  return now;
}

void Document::add_advisory(const std::string& kind, std::uint64_t step, const std::string& text) {
  const auto count = std::ranges::count_if(advisories_, [&](const json& a) { return a["kind"] == kind; });
  if (static_cast<std::size_t>(count) < incident::kAdvisoriesOfAKind)
    advisories_.push_back(incident::advisory(kind, step, text));
}

void Document::add_warning(json warning) {
  if (warnings_.size() < incident::kMaxWarnings) warnings_.push_back(std::move(warning));
}

void Document::not_watched(const std::string& what) {
  if (std::find(not_watched_.begin(), not_watched_.end(), what) == not_watched_.end()) not_watched_.push_back(what);
}

json Document::head(const incident::Counters& counters, std::optional<std::string> first_alarm,
                    std::uint64_t zero_gradients) const {
  const std::chrono::duration<double> seconds = std::chrono::system_clock::now() - started_;
  incident::RunFacts facts;
  facts.finitude = finitude_;
  facts.torch = torch_;
  facts.command = process_.command;
  facts.script = process_.program;
  facts.started = time_text(started_);
  facts.seconds = seconds.count();
  facts.counters = counters;
  facts.not_watched = not_watched_;
  facts.first_alarm = std::move(first_alarm);
  facts.zero_gradients = zero_gradients;
  return json(incident::report_head(facts));
}

json Document::whole(const incident::Counters& counters, const std::vector<incident::ZeroRow>& zero_rows,
                     std::uint64_t many) const {
  std::uint64_t few = 0;
  json ruined = json::array();
  for (const incident::ZeroRow& row : zero_rows) {
    if (row.count < many)
      few = std::max(few, row.count);
    else if (ruined.size() < incident::kAdvisoriesOfAKind)
      ruined.push_back(incident::zero_gradients_advisory(row));
  }
  json document = head(counters, alarms_.empty() ? std::nullopt : std::optional(alarms_.front().text), few);
  document["alarms"] = json::array();
  for (const Alarm& alarm : alarms_) document["alarms"].push_back(json(to_json(alarm)));
  document["warnings"] = warnings_;
  document["advisories"] = advisories_;
  for (json& one : ruined) document["advisories"].push_back(std::move(one));
  if (unlisted_ != 0) {
    document["alarms_unlisted"] = unlisted_;
    document["advisories"].push_back(incident::unlisted_advisory(unlisted_));
  }
  return document;
}

json Document::of_alarm(const Alarm& alarm, const incident::Counters& counters) const {
  json document = head(counters, alarms_.empty() ? alarm.text : alarms_.front().text);
  document["alarms"] = json::array({json(to_json(alarm))});
  document["advisories"] = json::array();
  return document;
}

std::string Document::closing_line(const json& whole, const std::string& place, const std::string& page) const {
  const std::string line = incident::closing_line(whole);
  if (place.empty()) return line + ".\n";
  return line + ". Report: " + place + (page.empty() ? "" : ", page: " + page) + "\n";
}

}  // namespace finitude::recorder
