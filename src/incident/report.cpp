#include "incident/report.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <string_view>
#include <utility>

#include "show/read.h"
#include "show/words.h"

namespace finitude::incident {
namespace {

using nlohmann::json;
using show::count;
using show::text;

// As a run without anything to watch explains itself.
std::string why_unwatched(const RunFacts& facts) {
  if (!facts.python) return "no step was taken by Recorder::step or Recorder::gate";
  if (facts.counters.backward_calls != 0) return "backward was called, but no optimizer of torch.optim stepped";
  if (facts.counters.optimizers != 0)
    return "an optimizer was made, but backward was never called and it never stepped";
  return "nothing that trains was seen: no optimizer and no backward";
}

// {outcome, reason}
std::pair<std::string, std::string> outcome(const RunFacts& facts) {
  if (facts.first_alarm) return {"alarm", *facts.first_alarm};
  if (!facts.failure.empty()) return {"unwatched", facts.failure};
  if (facts.counters.steps == 0 && facts.counters.scaler_skips == 0) return {"unwatched", why_unwatched(facts)};
  return {"clean", ""};
}

std::string counted(std::uint64_t n, std::string_view one, std::string_view several) {
  return std::to_string(n) + " " + std::string(n == 1 ? one : several);
}

// " in 3.4 s", " in 75 min", " in 5.2 h"; empty where the report does not say how long the run took.
std::string duration(const json& report) {
  const auto found = report.find("seconds");
  if (found == report.end() || !found->is_number()) return "";
  const double seconds = found->get<double>();
  char words[64];
  if (seconds < 120)
    std::snprintf(words, sizeof words, " in %.*f s", seconds < 9.95 ? 1 : 0, std::max(0.0, seconds));
  else if (seconds < 7200)
    std::snprintf(words, sizeof words, " in %.0f min", seconds / 60);
  else
    std::snprintf(words, sizeof words, " in %.1f h", seconds / 3600);
  return words;
}

// What lay around as an exception ended the program, of which no cause is known; and finite numbers (a zero that was
// divided by) that an exception was about.
constexpr std::string_view kOfTheEnd[] = {"not-finite-at-the-end", "ended-by-arithmetic"};
// Kinds of advisories after which nobody may say that all was finite.
constexpr std::string_view kNotFinite[] = {"handled-by-script", "killed", "allowed"};
// And those after which nobody may say it either, as everything is finite and the training is ruined: in this order
// the first is named.
struct Ruined {
  std::string_view kind, words;
};
constexpr Ruined kRuined[] = {{"zero-gradients", "every gradient is zero"},
                              {"clipping", "clipping has set finite gradients to zero"},
                              {"swallowed-overflow", "an overflow has made every gradient zero"},
                              {"optimizer-state-overflow", "the state of an optimizer has overflowed"}};

// What an exception that ended the program was about, where that is known.
bool say_end(const std::vector<const json*>& advisories, std::vector<std::string>* parts) {
  const auto last = std::ranges::find_if(advisories, [](const json* a) {
    return std::ranges::any_of(kOfTheEnd, [&](std::string_view kind) { return (*a)["kind"] == kind; });
  });
  if (last == advisories.end()) return false;
  parts->push_back(text(**last, "text"));
  return true;
}

// In which steps it was so by all advisories of that kind: "since" the first where they do not know the last.
std::string when(const std::vector<const json*>& advisories, std::string_view kind) {
  std::uint64_t first = std::numeric_limits<std::uint64_t>::max(), last = 0, times = 0;
  bool has_step = false, has_last = true;
  for (const json* one : advisories) {
    if ((*one)["kind"] != kind) continue;
    const auto step = one->find("step");
    if (step == one->end() || !step->is_number_unsigned()) continue;
    has_step = true;
    has_last = has_last && one->contains("last_step");
    first = std::min(first, step->get<std::uint64_t>());
    last = std::max(last, count(*one, "last_step"));
    times += count(*one, "times");
  }
  if (!has_step) return {};
  if (!has_last) return " since step " + std::to_string(first);
  if (first >= last) return " in step " + std::to_string(first);
  const std::string range = std::to_string(first) + " to " + std::to_string(last);
  return times <= last - first ? " in " + std::to_string(times) + " of the steps " + range : " in steps " + range;
}

// "all finite", or what is known where that is not so.
void say_clean(const json& watched, const std::vector<const json*>& advisories, std::vector<std::string>* parts) {
  bool bad_seen = count(watched, "unapplied") != 0 || count(watched, "handled_by_script") != 0 ||
                  count(watched, "zero_gradients") != 0;
  bad_seen |= say_end(advisories, parts);
  bad_seen |= std::ranges::any_of(advisories, [](const json* a) {
    return std::ranges::any_of(kNotFinite, [&](std::string_view kind) { return (*a)["kind"] == kind; });
  });
  for (const Ruined& ruined : kRuined) {
    const auto one = std::ranges::find_if(advisories, [&](const json* a) { return (*a)["kind"] == ruined.kind; });
    if (one == advisories.end()) continue;
    parts->push_back(std::string(ruined.words) + when(advisories, ruined.kind));
    return;
  }
  if (bad_seen) return;
  // Without an optimizer nobody reads the gradients, nor what the last of them was used for.
  const bool is_read = count(watched, "optimizers") != 0 || count(watched, "gradients_scanned") != 0;
  // What the GradScaler skipped was not finite; of nothing but that there is no more to say.
  const bool skipped = count(watched, "scaler_skips") != 0;
  if (skipped && count(watched, "steps") == 0) return parts->push_back("no step was applied");
  parts->push_back(std::string(is_read ? "all finite" : "losses all finite") + (skipped ? " in what was applied" : ""));
}

std::string failures_text(const json& failures) {
  const json& first = failures.front();
  return counted(failures.size(), "internal failure", "internal failures") + " that " +
         (failures.size() == 1 ? "costs" : "cost") + " part of an explanation (" + text(first, "text") + " at " +
         text(first, "where") + ")";
}

}  // namespace

nlohmann::ordered_json report_head(const RunFacts& facts) {
  const auto [word, reason] = outcome(facts);
  nlohmann::ordered_json watched = {{"optimizers", facts.counters.optimizers},
                                    {"steps", facts.counters.steps},
                                    {"backward_calls", facts.counters.backward_calls},
                                    {"gradients_scanned", facts.counters.gradients_scanned},
                                    {"scaler_skips", facts.counters.scaler_skips},
                                    {"handled_by_script", facts.counters.handled},
                                    {"not_watched", facts.not_watched}};
  if (facts.unapplied != 0) watched["unapplied"] = facts.unapplied;
  if (facts.zero_gradients != 0) watched["zero_gradients"] = facts.zero_gradients;
  if (facts.ranks > 1) watched["ranks"] = facts.ranks;
  if (facts.skipped != 0) watched["skipped"] = facts.skipped;
  if (facts.went_back != 0) watched["went_back"] = facts.went_back;
  if (facts.lowered_rates != 0) watched["lowered_rates"] = facts.lowered_rates;
  nlohmann::ordered_json head = {
      {"schema", 1},
      {"outcome", word},
      {"reason", reason},
      {"finitude", facts.finitude},
      {"torch", facts.torch},
      {"python", facts.python ? nlohmann::ordered_json(*facts.python) : nlohmann::ordered_json()},
      {"command", facts.command},
      {"script", facts.script},
      {"started", facts.started},
      {"seconds", std::max(0.0, facts.seconds)},
      {"watched", watched}};
  if (facts.by_watch) head["by_watch"] = true;
  return head;
}

RunFacts facts_of(const json& value) {
  RunFacts facts;
  const auto take = [&](const char* key, auto* member) {
    if (const auto found = value.find(key); found != value.end() && !found->is_null()) found->get_to(*member);
  };
  take("finitude", &facts.finitude);
  take("torch", &facts.torch);
  if (value.contains("python")) take("python", &facts.python.emplace());
  take("command", &facts.command);
  take("script", &facts.script);
  take("by_watch", &facts.by_watch);
  take("started", &facts.started);
  take("seconds", &facts.seconds);
  take("not_watched", &facts.not_watched);
  if (value.contains("first_alarm") && !value["first_alarm"].is_null())
    take("first_alarm", &facts.first_alarm.emplace());
  take("failure", &facts.failure);
  take("unapplied", &facts.unapplied);
  take("zero_gradients", &facts.zero_gradients);
  take("ranks", &facts.ranks);
  const json done = value.value("done", json::object());
  facts.skipped = count(done, "skipped");
  facts.went_back = count(done, "went_back");
  facts.lowered_rates = count(done, "lowered_rates");
  const json counters = value.value("counters", json::object());
  facts.counters = {count(counters, "optimizers"),     count(counters, "steps"),
                    count(counters, "backward_calls"), count(counters, "gradients_scanned"),
                    count(counters, "scaler_skips"),   count(counters, "handled_by_script")};
  return facts;
}

json advisory(const std::string& kind, std::optional<std::uint64_t> step, const std::string& text) {
  return {{"kind", kind},
          {"step", step ? json(*step) : json()},
          {"text", text},
          {"births", json::array()},
          {"cause", nullptr}};
}

json zero_gradients_advisory(const ZeroRow& row) {
  return advisory("zero-gradients", row.first,
                  "every gradient of " + row.optimizer + " was exactly zero in the last " + std::to_string(row.count) +
                      " steps, from step " + std::to_string(row.first) +
                      " on, though the loss was not: nothing was learned, as after clipping by a norm that overflowed");
}

json unlisted_advisory(std::uint64_t count) {
  return advisory("alarms-left-out", std::nullopt,
                  std::to_string(count) + " alarms more than a report holds are not listed");
}

bool trained(const json& report) {
  const json& watched = report.at("watched");
  return count(watched, "steps") != 0 || count(watched, "backward_calls") != 0 || count(watched, "scaler_skips") != 0 ||
         !report.at("alarms").empty();
}

namespace {

// "" where no checkpoint was written.
std::string checkpoints_text(const json& report) {
  const auto found = report.find("checkpoints");
  if (found == report.end() || !found->is_object() || count(*found, "written") == 0) return "";
  const std::uint64_t bad = count(*found, "bad");
  std::string line = bad != 0 ? counted(bad, "bad checkpoint", "bad checkpoints") + ", " : "";
  const auto last = found->find("last_good");
  if (last == found->end() || !last->is_object()) return line + "no good checkpoint";
  return line + "last good checkpoint " + text(*last, "checkpoint");
}

}  // namespace

namespace {

// What was bad in it: the program may have ended for that.
std::string last_handled(const json& report, std::uint64_t handled) {
  const json* last = nullptr;
  std::uint64_t listed = 0;
  for (const json& one : report.at("advisories")) {
    if (one["kind"] != "handled-by-script" || !one["step"].is_number_integer()) continue;
    last = &one;
    ++listed;
  }
  if (last == nullptr) return "";
  const std::string said = text(*last, "text");
  // Later ones than so many are not listed.
  return (listed >= kAdvisoriesOfAKind ? " (one of them, step "
          : handled > 1                ? " (the last one, step "
                                       : " (step ") +
         (*last)["step"].dump() + ": " + said.substr(0, said.find(';')) + ")";
}

}  // namespace

std::string closing_line(const json& report) {
  const json& watched = report.at("watched");
  const bool is_unwatched = report.at("outcome") == "unwatched";
  const std::uint64_t handled = count(watched, "handled_by_script"), ranks = count(watched, "ranks");
  std::vector<const json*> advisories;  // what the counts do not say
  for (const json& one : report.at("advisories")) {
    if (handled == 0 || one["kind"] != "handled-by-script") advisories.push_back(&one);
  }
  std::vector<std::string> parts;
  if (is_unwatched) {
    parts.push_back("not watched: " + text(report, "reason"));
    say_end(advisories, &parts);
  } else {
    parts.push_back(counted(count(watched, "steps"), "step", "steps") +
                    (ranks > 1 ? " on " + std::to_string(ranks) + " ranks" : "") + " watched" + duration(report));
    parts.push_back(std::to_string(count(watched, "gradients_scanned")) + " gradients scanned");
    if (const auto skips = count(watched, "scaler_skips"); skips != 0)
      parts.push_back(std::to_string(skips) + " skipped by the GradScaler");
    if (handled != 0)
      parts.push_back(counted(handled, "bad step", "bad steps") + " handled by the " +
                      (show::is_of_cpp(report) ? "program" : "script") + last_handled(report, handled));
    if (!report.at("alarms").empty()) parts.push_back(counted(show::alarm_count(report), "alarm", "alarms"));
    if (const auto skipped = count(watched, "skipped"); skipped != 0)
      parts.push_back(counted(skipped, "bad step", "bad steps") + " skipped");
    if (const auto times = count(watched, "went_back"); times != 0)
      parts.push_back("rolled back " + counted(times, "time", "times"));
    if (const auto times = count(watched, "lowered_rates"); times != 0)
      parts.push_back("learning rate lowered " + counted(times, "time", "times"));
  }
  const bool is_killed = report["outcome"] == "killed";
  if (is_killed) parts.push_back(text(report, "reason"));
  if (is_killed || report["outcome"] == "clean") say_clean(watched, advisories, &parts);
  if (!is_unwatched) {
    if (const auto unapplied = count(watched, "unapplied"); unapplied != 0)
      parts.push_back("the last " + std::to_string(unapplied) + " applied by no step");
    if (const auto zero = count(watched, "zero_gradients"); zero != 0)
      parts.push_back((zero == 1 ? "the last step" : "the last " + std::to_string(zero) + " steps") +
                      " had only zero gradients");
    const json& all = show::list(report, "warnings");
    const auto outliers =
        static_cast<std::size_t>(std::ranges::count_if(all, [](const json& one) { return one["what"] == "outlier"; }));
    if (all.size() > outliers) parts.push_back(counted(all.size() - outliers, "warning", "warnings"));
    if (outliers != 0) parts.push_back(counted(outliers, "outlier", "outliers"));
    if (!advisories.empty()) parts.push_back(counted(advisories.size(), "advisory", "advisories"));
    if (std::string checkpoints = checkpoints_text(report); !checkpoints.empty())
      parts.push_back(std::move(checkpoints));
    if (const auto from = report.find("unwatched_from"); from != report.end() && from->is_number_integer())
      parts.push_back("not watched from step " + from->dump() + " on: an internal failure of the gate");
  }
  if (const auto failures = report.find("failures");
      failures != report.end() && failures->is_array() && !failures->empty())
    parts.push_back(failures_text(*failures));
  if (const auto not_watched = watched.find("not_watched"); not_watched != watched.end() && !not_watched->empty()) {
    std::string all;
    for (const json& one : *not_watched) all += (all.empty() ? "" : "; ") + one.get<std::string>();
    parts.push_back("not watched: " + all);
  }
  std::string line = "finitude: ";
  for (std::size_t i = 0; i < parts.size(); ++i) line += (i == 0 ? "" : ", ") + parts[i];
  return line;
}

}  // namespace finitude::incident
