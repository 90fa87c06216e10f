#include "incident/merge.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "incident/report.h"
#include "show/read.h"
#include "show/show.h"

namespace finitude::incident {
namespace {

using nlohmann::json;

constexpr std::array kCounts = {"optimizers",        "steps",   "backward_calls", "gradients_scanned", "scaler_skips",
                                "handled_by_script", "skipped", "went_back",      "lowered_rates"};
constexpr std::size_t kAlwaysThere = 6;  // the first ones; others where they are not zero

using show::count;
using show::text;

// In how many ranks it took part; 1 where it is none of several.
std::uint64_t ranks_of(const json& report) {
  return std::max<std::uint64_t>(1, count(show::at(report, "watched"), "ranks"));
}

std::map<std::string_view, std::uint64_t> counts_of(const std::vector<const json*>& reports) {
  std::map<std::string_view, std::uint64_t> sum;
  for (const json* report : reports) {
    for (const char* key : kCounts) sum[key] += count((*report)["watched"], key);
  }
  return sum;
}

json not_watched(const json& own, const std::vector<Member>& members) {
  json said = show::list(own.at("watched"), "not_watched");
  std::vector<std::pair<std::string, std::vector<const Member*>>> by_text;  // in the order in which they were met
  const auto add = [&](const std::string& what, const Member& member) {
    auto found = std::ranges::find(by_text, what, [](const auto& one) { return one.first; });
    if (found == by_text.end()) found = by_text.insert(found, {what, {}});
    found->second.push_back(&member);
  };
  for (const Member& member : members) {
    if (member.report.is_null()) {
      add(member.missing, member);
      continue;
    }
    for (const json& what : show::list(member.report["watched"], "not_watched")) add(what.get<std::string>(), member);
  }
  for (const auto& [what, of] : by_text) {
    if (of.size() == members.size() && of.size() > 1) {
      said.push_back(what);
      continue;
    }
    std::string labels;
    for (const Member* member : of) labels += (labels.empty() ? "" : ", ") + label_of(*member);
    said.push_back(labels + ": " + what);
  }
  return said;
}

// What ranks watched counts once, since they take their steps together; what each of them read is added up.
json watched_of(const json& own, const std::vector<Member>& members) {
  std::map<std::uint64_t, std::vector<const json*>> ranks;
  std::vector<const json*> others = {&own};
  std::uint64_t size = ranks_of(own), unapplied = count(own.at("watched"), "unapplied");
  std::uint64_t zero = count(own.at("watched"), "zero_gradients");
  for (const Member& member : members) {
    if (member.report.is_null()) continue;
    const auto rank = rank_of(member);
    (rank ? ranks[*rank] : others).push_back(&member.report);
    size = std::max(size, ranks_of(member.report));
    unapplied = std::max(unapplied, count(member.report["watched"], "unapplied"));
    zero = std::max(zero, count(member.report["watched"], "zero_gradients"));
  }
  auto total = counts_of(others);
  for (const char* key : kCounts) {
    std::uint64_t sum = 0, most = 0;
    for (const auto& [unused, reports] : ranks) {
      const std::uint64_t one = counts_of(reports)[key];
      sum += one;
      most = std::max(most, one);
    }
    total[key] += key == std::string_view("gradients_scanned") ? sum : most;
  }
  json watched = json::object();
  for (std::size_t i = 0; i < kCounts.size(); ++i)
    if (i < kAlwaysThere || total[kCounts[i]] != 0) watched[kCounts[i]] = total[kCounts[i]];
  size = std::max<std::uint64_t>(size, ranks.size());
  if (size > 1) watched["ranks"] = size;
  if (unapplied != 0) watched["unapplied"] = unapplied;
  if (zero != 0) watched["zero_gradients"] = zero;
  watched["not_watched"] = not_watched(own, members);
  return watched;
}

// Did the bad value come to this rank from another?
bool is_received(const json& alarm) { return text(alarm["cause"], "class") == "other-rank"; }

// In time; of one step first the rank that shows most: it made the bad value, its own loss was bad, or it has a birth.
auto order_of(const json& alarm) {
  return std::tuple(count(alarm, "step"), is_received(alarm), text(alarm["sink"], "kind") != "loss",
                    alarm["births"].empty(), count(alarm, "rank"));
}

// Where a rank made the bad value.
std::string made_at(const json& alarm) {
  const json& birth = alarm["births"][0];
  const std::string file = text(birth, "file"), op = text(birth, "op"), phase = text(birth, "phase");
  const std::uint64_t line = count(birth, "line");
  if (file.empty() || line == 0 || (op.empty() && phase != "data" && phase != "backward"))
    return ", whose " + text(alarm["sink"], "name") + " was not finite at this step";
  return ", where " + (op.empty() ? "it was made" : op + " made it") + " at " + file.substr(file.rfind('/') + 1) + ":" +
         std::to_string(line);
}

// The alarms of one step by their rank, the first of each.
using OfStep = std::map<std::uint64_t, const json*>;

bool has_own_birth(const json& alarm) {
  return !alarm["births"].empty() && text(alarm["births"][0], "phase") != "communication";
}

bool was_given(const json& alarm, const json& exchange) {
  return std::ranges::any_of(show::list(alarm["births"][0], "exchanges"), [&](const json& one) {
    return exchange.contains("number") && text(one, "group") == text(exchange, "group") &&
           one.value("number", json()) == exchange["number"];
  });
}

// Who can have sent it through that exchange.
std::vector<std::uint64_t> ranks_of_exchange(const json& exchange) {
  std::vector<std::uint64_t> ranks;
  for (const json& rank : show::list(exchange, "ranks")) ranks.push_back(rank.get<std::uint64_t>());
  const auto root = exchange.find("root");
  if (root != exchange.end() && count(exchange, "root") < ranks.size()) return {ranks[count(exchange, "root")]};
  return ranks;
}

// The ranks with a birth of their own that the value came from: those that gave a bad value to the same exchange, else
// those of its group, also by way of a rank that received it itself.
void add_senders(const OfStep& step, std::uint64_t receiver, std::set<std::uint64_t>* asked,
                 std::set<std::uint64_t>* senders) {
  const auto found = step.find(receiver);
  if (!asked->insert(receiver).second || found == step.end() || (*found->second)["births"].empty()) return;
  if (has_own_birth(*found->second)) {
    senders->insert(receiver);
    return;
  }
  for (const json& exchange : show::list((*found->second)["births"][0], "exchanges")) {
    const auto ranks = ranks_of_exchange(exchange);
    const auto is_sender = [&](std::uint64_t rank) {
      const auto other = step.find(rank);
      return other != step.end() && has_own_birth(*other->second) && was_given(*other->second, exchange);
    };
    const bool is_exact = std::ranges::any_of(ranks, is_sender);
    for (const std::uint64_t rank : ranks) {
      if (!is_exact || is_sender(rank)) add_senders(step, rank, asked, senders);
    }
  }
}

// What came from another rank came from one that has a birth of its own at the same step.
void name_the_other(json* alarms) {
  std::map<std::uint64_t, OfStep> steps;
  for (const json& alarm : *alarms) {
    const json*& first = steps[count(alarm, "step")][count(alarm, "rank")];
    if (first == nullptr || (has_own_birth(alarm) && !has_own_birth(*first))) first = &alarm;
  }
  for (json& alarm : *alarms) {
    const OfStep& step = steps[count(alarm, "step")];
    if (!is_received(alarm) || has_own_birth(*step.at(count(alarm, "rank")))) continue;
    std::set<std::uint64_t> senders, asked;
    add_senders(step, count(alarm, "rank"), &asked, &senders);
    if (senders.empty()) {  // which exchange it was is not known
      for (const auto& [rank, other] : step)
        if (has_own_birth(*other)) senders.insert(rank);
    }
    const bool several = senders.size() > 1;
    // Without a birth it got no value, and its text names whom it followed.
    if (senders.empty() || (several && alarm["births"].empty())) continue;
    alarm["cause"]["confidence"] = "likely";
    const auto fix = alarm.find("fix");
    const bool may_fix = fix != alarm.end() && fix->is_object() && !fix->value("verified", false);
    if (several) {
      std::string ranks;
      for (const std::uint64_t one : senders) ranks += (ranks.empty() ? "" : ", ") + std::to_string(one);
      alarm["cause"]["text"] = "the value came from one of ranks " + ranks;
      if (may_fix) (*fix)["text"] = "see the births on ranks " + ranks;
      continue;
    }
    const std::uint64_t rank = *senders.begin();
    const json& other = *step.at(rank);
    alarm["cause"]["text"] = "the value came from rank " + std::to_string(rank) + made_at(other);
    const json& birth = other["births"][0];
    if (!may_fix || text(birth, "file").empty()) continue;
    (*fix)["text"] = "see the birth on rank " + std::to_string(rank);
    (*fix)["file"] = birth["file"];
    (*fix)["line"] = count(birth, "line");
  }
}

// The first text that one of the reports has under that key, own first.
std::string first_text(const char* key, const json& own, const std::vector<const json*>& reports) {
  std::string found = text(own, key);
  for (auto report = reports.begin(); found.empty() && report != reports.end(); ++report) found = text(**report, key);
  return found;
}

// Why a launcher may have ended the others: the first rank that has its whole report. It may have ended before or after
// them, and by a signal that its program handles.
std::string ended_with_report(const std::vector<Member>& members) {
  for (const Member& member : members) {
    if (!rank_of(member) || !member.is_whole) continue;
    return "; " + label_of(member) + " wrote its report after " +
           std::to_string(count(member.report["watched"], "steps")) + " steps";
  }
  return "";
}

std::pair<std::string, std::string> outcome_of(const json& own, const std::vector<Member>& members,
                                               const std::vector<const json*>& everyone, const json& alarms,
                                               const json& advisories, bool any_report) {
  if (!alarms.empty()) return {"alarm", text(alarms[0], "text")};
  if (!any_report && own.at("outcome") == "unwatched")
    return {"unwatched", label_of(members[0]) + ": " + members[0].missing};
  const auto unwatched = [](const json* report) { return (*report)["outcome"] == "unwatched"; };
  if (!everyone.empty() && std::ranges::all_of(everyone, unwatched)) return {"unwatched", text(*everyone[0], "reason")};
  std::string killed;  // a launcher ends by SIGTERM those that are left when one has died
  for (const json& one : advisories) {
    if (one["kind"] == "killed" && (killed.empty() || killed.find("by SIGTERM") != std::string::npos))
      killed = text(one, "text");
  }
  if (killed.find("by SIGTERM") != std::string::npos) killed += ended_with_report(members);
  if (!killed.empty()) return {"killed", killed};
  return {"clean", ""};
}

// What processes wrote, together; an empty object where that is nothing. The last good one is that of the latest step.
json merged_checkpoints(const json& own, const std::vector<Member>& members) {
  json result = own.value("checkpoints", json::object());
  for (const Member& member : members) {
    if (member.report.is_null()) continue;
    const json one = member.report.value("checkpoints", json::object());
    if (result.empty() || one.empty()) {
      if (!one.empty()) result = one;
      continue;
    }
    for (const char* key : {"written", "bad", "after_onset"}) result[key] = count(result, key) + count(one, key);
    const json there = result["last_good"], other = one.value("last_good", json());
    if (other.is_object() && (!there.is_object() || count(other, "step") > count(there, "step")))
      result["last_good"] = other;
  }
  return result;
}

}  // namespace

json merged(const json& own, const std::vector<Member>& members) {
  if (members.empty()) return own;
  std::vector<const json*> reports, all = {&own}, everyone;
  for (const Member& member : members) {
    if (!member.report.is_null()) reports.push_back(&member.report);
  }
  all.insert(all.end(), reports.begin(), reports.end());
  if (trained(own)) everyone.push_back(&own);
  everyone.insert(everyone.end(), reports.begin(), reports.end());

  json result = own;
  for (const char* key : {"torch", "finitude"}) result[key] = first_text(key, own, reports);
  if (!trained(own)) {
    const std::string script = first_text("script", json::object(), reports);
    result["script"] = script.empty() ? text(own, "script") : script;
  }
  std::vector<json> alarms;
  for (const json* report : everyone)
    alarms.insert(alarms.end(), (*report)["alarms"].begin(), (*report)["alarms"].end());
  std::ranges::stable_sort(alarms, {}, order_of);
  json listed = alarms;
  name_the_other(&listed);

  json advisories = own.at("advisories");
  for (const Member& member : members) {
    if (member.report.is_null()) continue;
    for (json one : member.report["advisories"]) {
      if (const auto rank = rank_of(member)) one["rank"] = *rank;
      advisories.push_back(std::move(one));
    }
  }
  json warnings = own.value("warnings", json::array());
  for (const Member& member : members) {
    if (member.report.is_null()) continue;
    for (json one : show::list(member.report, "warnings")) {
      if (const auto rank = rank_of(member)) one["rank"] = *rank;
      warnings.push_back(std::move(one));
    }
  }
  if (warnings.size() > kMaxAdvisories)
    warnings.erase(warnings.begin(), warnings.end() - static_cast<std::ptrdiff_t>(kMaxAdvisories));
  std::uint64_t unlisted = 0;
  for (const json* report : everyone) unlisted += count(*report, "alarms_unlisted");
  if (listed.size() > show::kMaxAlarms) {
    unlisted += listed.size() - show::kMaxAlarms;
    advisories.push_back(unlisted_advisory(listed.size() - show::kMaxAlarms));
    listed.erase(listed.begin() + show::kMaxAlarms - 1, listed.end() - 1);  // the newest is listed
  }
  result["watched"] = watched_of(own, members);
  const auto [outcome, reason] = outcome_of(own, members, everyone, listed, advisories, !reports.empty());
  if (advisories.size() > kMaxAdvisories)
    advisories.erase(advisories.begin(), advisories.end() - static_cast<std::ptrdiff_t>(kMaxAdvisories));
  result["outcome"] = outcome;
  result["reason"] = reason;
  result["alarms"] = std::move(listed);
  if (unlisted != 0) result["alarms_unlisted"] = unlisted;
  result["advisories"] = std::move(advisories);
  result["warnings"] = std::move(warnings);
  if (json checkpoints = merged_checkpoints(own, members); !checkpoints.empty())
    result["checkpoints"] = std::move(checkpoints);

  result["failures"] = json::array();
  std::optional<std::uint64_t> unwatched_from;
  const json* trace = nullptr;
  std::size_t traces = 0;
  for (const json* report : all) {
    for (const json& one : show::list(*report, "failures")) {
      if (one.is_object() && result["failures"].size() < kMaxAdvisories) result["failures"].push_back(one);
    }
    const auto from = report->find("unwatched_from");
    if (from != report->end() && from->is_number_unsigned())
      unwatched_from = std::min(unwatched_from.value_or(from->get<std::uint64_t>()), from->get<std::uint64_t>());
  }
  for (const json* report : everyone) {
    if (!report->contains("trace")) continue;
    trace = &(*report)["trace"];
    ++traces;
  }
  result["unwatched_from"] = unwatched_from ? json(*unwatched_from) : json();
  if (traces == 1) result["trace"] = *trace;
  return result;
}

}  // namespace finitude::incident
