// `policy RUN`: what other policies would have done about the alarms of a run, step by step.
#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/newest.h"
#include "decide/policy.h"
#include "incident/run_folder.h"
#include "show/json_file.h"
#include "show/printable.h"

namespace finitude::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t kMostEventBytes = std::size_t{64} << 20;  // what a run writes at most
constexpr std::size_t kMostAlarmsRead = 100'000, kShownDecisions = 200;
constexpr std::uint64_t kMostStep = std::uint64_t{1} << 53;

struct PastAlarm {
  std::uint64_t step = 0;
  std::string optimizer;
  bool harmless = false;
};

std::string text_at(const json& object, const char* key) {
  const json value = object.value(key, json());
  return value.is_string() ? value.get<std::string>() : std::string();
}

// One for each step of an optimizer, in the order in which they came. event: with "step" and "optimizer".
void add_alarm(const json& event, const json& alarm, std::vector<PastAlarm>* alarms) {
  const json step = event.value("step", json());
  if (!step.is_number_unsigned() || step.get<std::uint64_t>() >= kMostStep || alarms->size() >= kMostAlarmsRead) return;
  PastAlarm one{step.get<std::uint64_t>(), text_at(event, "optimizer"), false};
  // An alarm is noted when its step is stopped, and once more when it is explained.
  const auto same = std::find_if(alarms->rbegin(), alarms->rend(), [&](const PastAlarm& other) {
    return other.step == one.step && other.optimizer == one.optimizer;
  });
  PastAlarm* const kept = same == alarms->rend() ? &alarms->emplace_back(std::move(one)) : &*same;
  if (alarm.is_object() && alarm.value("harmless", json()) == true) kept->harmless = true;
}

// False: not every line is an event.
bool add_events(const std::string& bytes, std::vector<PastAlarm>* alarms) {
  bool is_whole = true;
  std::istringstream lines(bytes);
  for (std::string line; std::getline(lines, line);) {
    json event;
    const bool may_count = line.find("\"alarm\"") != std::string::npos;
    if (line.empty() || line.front() != '{' || line.back() != '}' ||
        (may_count && (!show::parse_json(line, event).empty() || !event.is_object())))
      is_whole = false;
    else if (may_count && event.value("kind", json()) == "alarm")
      add_alarm(event, event.value("alarm", json()), alarms);
  }
  return is_whole;
}

// Of events.jsonl; where lines of it are damaged or it is not there, of report.json first. False: there is neither.
bool read_alarms(const std::string& folder, std::vector<PastAlarm>* alarms, const Console& console) {
  std::string bytes;
  const bool has_events = show::read_file(folder + "/events.jsonl", kMostEventBytes, bytes).empty();
  if (has_events && add_events(bytes, alarms)) return true;
  json report;
  if (show::read_report_json(folder, show::kMaxFile, report).ok()) {
    alarms->clear();
    for (const json& alarm : report["alarms"]) add_alarm(alarm, alarm, alarms);
    if (has_events) add_events(bytes, alarms);
    return true;
  }
  if (has_events) console.note("lines of " + folder + "/events.jsonl cannot be read: alarms may be missing");
  return has_events;
}

const char* word_of(decide::Action action) {
  switch (action) {
    case decide::Action::kApply:
      return "apply";
    case decide::Action::kSkip:
      return "skip";
    case decide::Action::kRollBack:
      return "roll back";
    case decide::Action::kLowerRate:
      return "lower the rate";
    case decide::Action::kStop:
      return "stop";
    case decide::Action::kRaise:
      return "raise";
  }
  return "";
}

// The folder of the run, or of its first process where the run has no events of its own.
std::string folder_with_events(const std::string& run) {
  std::error_code error;
  const std::string folder = fs::is_directory(run, error) ? run : fs::path(run).parent_path().string();
  if (incident::is_file(folder + "/events.jsonl")) return folder;
  for (const std::string& member : incident::member_folders(folder)) {
    if (incident::is_file(member + "/events.jsonl")) return member;
  }
  return folder.empty() ? "." : folder;
}

}  // namespace

int policy_command(const PolicyWords& words, const Console& console) {
  const auto policies = decide::parse_policies(words.then);
  const auto first = decide::parse_policy(words.on_alarm);
  decide::Limits limits{.in_a_row = words.max_skips, .total = words.max_bad, .cool_down = words.cool_down};
  std::string wrong;
  if (!first || *first == decide::Policy::kLowerRate)
    wrong = "--on-alarm takes stop, skip, warn, raise or rollback, not '" + words.on_alarm + "'";
  else if (!policies || std::ranges::find(*policies, decide::Policy::kWarn) != policies->end())
    wrong = "--then takes skip, lower-rate, rollback, stop and raise, with commas, not '" + words.then + "'";
  else if (!words.max_bad_share.empty() && !decide::parse_share(words.max_bad_share, &limits))
    wrong = "--max-bad-share takes a share, or a share of a number of steps: 0.05 or 0.05/200, not '" +
            words.max_bad_share + "'";
  if (!wrong.empty()) {
    console.complain(wrong);
    return kUsage;
  }
  const std::string run = words.run.empty() ? take_newest(Wanted::kRun, console) : words.run;
  if (run.empty()) return kUnreadable;
  std::vector<PastAlarm> alarms;
  if (!read_alarms(folder_with_events(run), &alarms, console)) {
    console.complain(run + " has no events.jsonl and no report.json that can be read");
    return kUnreadable;
  }
  decide::PolicyMachine machine(*first, limits, *policies);
  std::map<std::string, std::uint32_t> ordinals;
  json decisions = json::array();
  std::string table;
  bool has_ended = false;
  for (const PastAlarm& one : alarms) {
    if (has_ended) break;
    const auto ordinal = ordinals.try_emplace(one.optimizer, static_cast<std::uint32_t>(ordinals.size())).first->second;
    const decide::Action action = machine.on_alarm(ordinal, one.step, one.harmless);
    const std::string why = machine.beyond(ordinal);
    has_ended = decide::ends(action);
    decisions.push_back({{"step", one.step},
                         {"optimizer", one.optimizer},
                         {"harmless", one.harmless},
                         {"action", word_of(action)},
                         {"why", why}});
    if (decisions.size() <= kShownDecisions || has_ended) {
      table += "step " + std::to_string(one.step) + "  " + show::printable(one.optimizer, console.screen.unicode) +
               "  " + word_of(action) + (one.harmless ? "  (gradients finite)" : "") + (why.empty() ? "" : "  " + why) +
               '\n';
    }
  }
  const std::size_t left = alarms.size() - decisions.size();
  if (words.json) {
    const json document = {
        {"schema", 1}, {"run", run}, {"decisions", decisions}, {"ends", has_ended}, {"not_reached", left}};
    console.out << document.dump(2, ' ', true, json::error_handler_t::replace) << '\n';
    return kDone;
  }
  console.out << table;
  if (decisions.size() > kShownDecisions)
    console.out << "the first " << kShownDecisions << " of " << decisions.size()
                << " decisions are shown; --json has all\n";
  if (has_ended) {
    console.out << "the run ends there; later alarms that are not reached: " << left << '\n';
  } else {
    console.out << "the run goes to its end; alarms: " << alarms.size() << '\n';
  }
  console.note("these are the alarms of the recorded run: after a decision that differs, others may have come");
  return kDone;
}

}  // namespace finitude::cli
