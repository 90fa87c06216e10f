#include "incident/member.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "incident/report.h"
#include "incident/run_folder.h"
#include "record/ring_format.h"
#include "record/ring_posix.h"
#include "show/json_file.h"
#include "show/read.h"

namespace finitude::incident {
namespace {

using nlohmann::json;

// An object of a small file; empty where there is none.
json object_in(const std::string& path) {
  constexpr std::size_t kMaxSmall = 1 << 20;
  std::string bytes;
  json value;
  if (!show::read_file(path, kMaxSmall, bytes).empty() || !show::parse_json(bytes, value).empty() || !value.is_object())
    return json::object();
  return value;
}

// The signal that ended a process, by who saw it; empty: not known.
std::string signal_of(const std::string& folder) {
  return show::text(object_in(folder + "/killed.json"), "signal").substr(0, 32);
}

// What the ring of a process says that left no last word.
struct RingSteps {
  std::uint64_t taken = 0;  // by the process
  std::size_t held = 0;     // of these, in the ring
  std::size_t bad = 0;      // of these, with a loss that is not finite or an alarm
};

RingSteps steps_of_ring(const std::string& path) {
  record::RingContents ring;
  std::string error;
  if (!is_file(path) || !record::read_ring_file(path, &ring, &error)) return {};
  const auto is_bad = [](const record::StepRecord& step) {
    return (step.flags & record::kStepAlarm) != 0 || !std::isfinite(step.loss);
  };
  return {steps_in_ring(path), ring.records.size(),
          static_cast<std::size_t>(std::ranges::count_if(ring.records, is_bad))};
}

json of_killed(const RingSteps& ring, const std::string& signal) {
  const std::string losses = ring.bad != 0
                                 ? std::to_string(ring.bad) + " of them with a loss that is not finite or an alarm"
                                 : "all with finite losses";
  const std::string how = !signal.empty()
                              ? "killed by " + signal
                              : "ended before it could write a report, as a worker does that a pool kills at its end";
  const std::string text = how + "; the last " + std::to_string(ring.held) + " of its " + std::to_string(ring.taken) +
                           " steps are in steps.ring, " + losses + "; other counts are lost";
  return {{"outcome", "clean"},
          {"reason", ""},
          {"watched",
           {{"optimizers", 1},
            {"steps", ring.taken},
            {"backward_calls", 0},
            {"gradients_scanned", 0},
            {"scaler_skips", 0},
            {"handled_by_script", 0},
            {"not_watched", json::array({text})}}},
          {"alarms", json::array()},
          {"advisories", json::array()}};
}

// Into the report of a process that was killed while it trained: how, as far as that is known.
void report_kill(json* report, const std::string& signal, std::uint64_t steps, std::optional<std::uint64_t> rank) {
  const std::string text = signal.empty() ? "ended without a last word" : "killed by " + signal;
  if (report->erase("under_way") != 0)
    (*report)["watched"]["not_watched"].push_back(text +
                                                  ": what it reported until then is included, later results are lost");
  if (signal.empty() || (!rank && signal == "SIGTERM")) return;  // which ends the workers of a pool
  (*report)["advisories"].push_back(advisory("killed", std::nullopt,
                                             (rank ? "rank " + std::to_string(*rank) : "a process of the run") +
                                                 " was killed by " + signal + " after " + std::to_string(steps) +
                                                 " steps"));
}

Member member_of(const std::string& folder) {
  Member member{folder, nullptr, "", false};
  std::string bytes;
  if (!show::read_file(folder + "/report.json", show::kMaxFile, bytes).empty() ||
      !show::parse_report_json(bytes, member.report).empty())
    member.report = nullptr;
  if (!member.report.is_null()) settle_capsules(&member.report);
  member.is_whole = !member.report.is_null() && !member.report.contains("under_way");
  if (member.is_whole) return member;
  const json unwatched = object_in(folder + "/unwatched.json");
  const RingSteps ring = steps_of_ring(folder + "/steps.ring");
  const std::string signal = signal_of(folder);
  if (member.report.is_null() && ring.taken != 0 && unwatched.empty()) member.report = of_killed(ring, signal);
  if (member.report.is_null()) {
    member.missing = show::text(unwatched, "reason");
    if (member.missing.empty())
      member.missing = signal.empty() ? "ended before it could write a report" : "killed by " + signal;
    return member;
  }
  json& steps = member.report["watched"]["steps"];
  steps = std::max(steps.get<std::uint64_t>(), ring.taken);
  report_kill(&member.report, signal, ring.taken, rank_of(member));
  return member;
}

}  // namespace

std::string name_of(const Member& member) { return member.folder.substr(member.folder.rfind('/') + 1); }

std::optional<std::uint64_t> rank_of(const Member& member) {
  const std::string name = name_of(member);
  constexpr std::string_view kRank = "rank-";
  if (!name.starts_with(kRank)) return std::nullopt;
  const std::string number = name.substr(kRank.size(), name.find('-', kRank.size()) - kRank.size());
  return std::stoull(number);  // member_folders takes nine digits at most
}

std::string label_of(const Member& member) {
  if (const auto rank = rank_of(member)) return "rank " + std::to_string(*rank);
  const std::string name = name_of(member);
  return "process " + name.substr(name.find('-') + 1);
}

std::vector<Member> members(const std::string& run) {
  std::vector<Member> found;
  for (const std::string& folder : member_folders(run)) found.push_back(member_of(folder));
  return found;
}

}  // namespace finitude::incident
