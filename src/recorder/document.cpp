#include "recorder/document.h"

#include <algorithm>
#include <cstdlib>
#include <ctime>

#include "show/show.h"
#include "show/words.h"

namespace finitude::recorder {

using nlohmann::json;

std::string time_text(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char text[40];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S+00:00", &utc);
  return text;
}

json environment() {
  json found = json::object();
  for (const char* name : {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "MKL_CBWR", "ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA",
                           "ONEDNN_MAX_CPU_ISA"}) {
    if (const char* value = std::getenv(name)) found[name] = value;
  }
  return found;
}

Document::Document(std::string finitude, std::string torch)
    : finitude_(std::move(finitude)), torch_(std::move(torch)), process_(this_process()) {}

void Document::add_alarm(json alarm) {
  if (alarms_.size() < show::kMaxAlarms)
    alarms_.push_back(std::move(alarm));
  else
    ++alarms_left_out_;
}

void Document::settle_capsule(const std::string& folder, const std::string& why_not) {
  for (json& alarm : alarms_) {
    if (!alarm.contains("capsule_pending") || alarm["capsule"] != folder) continue;
    alarm.erase("capsule_pending");
    if (!why_not.empty()) alarm["capsule"] = nullptr;
  }
}

json Document::settled(const json& alarm) const {
  if (!alarm["capsule"].is_string()) return alarm;
  json now = alarm;
  const auto is_it = [&](const json& one) {
    return one["step"] == alarm["step"] && one["optimizer"] == alarm["optimizer"];
  };
  const auto found = std::find_if(alarms_.rbegin(), alarms_.rend(), is_it);
  if (found == alarms_.rend()) return now;
  now["capsule"] = (*found)["capsule"];
  if (!found->contains("capsule_pending")) now.erase("capsule_pending");
  return now;
}

void Document::add_advisory(const std::string& kind, std::uint64_t step, const std::string& text) {
  constexpr std::ptrdiff_t kOfAKind = 20;
  if (std::count_if(advisories_.begin(), advisories_.end(), [&](const json& a) { return a["kind"] == kind; }) >=
      kOfAKind)
    return;
  advisories_.push_back(
      {{"kind", kind}, {"step", step}, {"text", text}, {"births", json::array()}, {"cause", nullptr}});
}

void Document::not_watched(const std::string& what) {
  if (std::find(not_watched_.begin(), not_watched_.end(), what) == not_watched_.end()) not_watched_.push_back(what);
}

json Document::whole(const Counters& counters) const {
  json document = {{"schema", 1},
                   {"outcome", "clean"},
                   {"reason", ""},
                   {"finitude", finitude_},
                   {"torch", torch_},
                   {"python", nullptr},
                   {"command", process_.command},
                   {"script", process_.program},
                   {"started", time_text(started_)},
                   {"alarms", alarms_},
                   {"advisories", advisories_}};
  const std::chrono::duration<double> seconds = std::chrono::system_clock::now() - started_;
  document["seconds"] = std::max(0.0, seconds.count());
  document["watched"] = {{"optimizers", counters.optimizers},
                         {"steps", counters.steps},
                         {"backward_calls", counters.closures},
                         {"gradients_scanned", counters.gradients_scanned},
                         {"scaler_skips", 0},
                         {"handled_by_script", counters.handled},
                         {"not_watched", not_watched_}};
  if (!alarms_.empty()) {
    document["outcome"] = "alarm";
    document["reason"] = alarms_.front().value("text", "");
  } else if (counters.steps == 0) {
    document["outcome"] = "unwatched";
    document["reason"] = "no step was taken by Recorder::step or Recorder::gate";
  }
  if (alarms_left_out_ != 0) {
    document["advisories"].push_back(
        {{"kind", "alarms-left-out"},
         {"step", nullptr},
         {"births", json::array()},
         {"cause", nullptr},
         {"text", std::to_string(alarms_left_out_) + " alarms more than a report holds are not listed"}});
  }
  return document;
}

json Document::of_alarm(const json& alarm, const Counters& counters) const {
  json document = whole(counters);
  document["outcome"] = "alarm";
  document["alarms"] = json::array({alarm});
  document["advisories"] = json::array();
  return document;
}

std::string Document::closing_line(const Counters& counters, const std::string& place) const {
  const json document = whole(counters);
  std::string line = "finitude: ";
  if (document["outcome"] == "unwatched") {
    line += "not watched: " + document["reason"].get<std::string>();
  } else {
    line += show::counted(counters.steps, "step") + " watched, " + std::to_string(counters.gradients_scanned) +
            " gradients scanned";
    if (counters.handled != 0) line += ", " + show::counted(counters.handled, "bad step") + " handled by the program";
    line += alarms_.empty() ? ", all finite" : ", " + show::counted(alarms_.size() + alarms_left_out_, "alarm");
  }
  for (std::size_t i = 0; i < not_watched_.size(); ++i) line += (i == 0 ? ", not watched: " : "; ") + not_watched_[i];
  return line + (place.empty() ? ".\n" : ". Report: " + place + "\n");
}

}  // namespace finitude::recorder
