#include "decide/policy.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iterator>
#include <limits>
#include <system_error>
#include <utility>

namespace finitude::decide {

std::optional<Policy> parse_policy(std::string_view name) noexcept {
  for (std::size_t i = 0; i < std::size(kPolicyNames); ++i) {
    if (kPolicyNames[i] == name) return static_cast<Policy>(i);
  }
  return std::nullopt;
}

std::optional<std::vector<Policy>> parse_policies(std::string_view names) {
  std::vector<Policy> policies;
  while (!names.empty()) {
    const std::size_t comma = names.find(',');
    const auto policy = parse_policy(names.substr(0, comma));
    if (!policy) return std::nullopt;
    policies.push_back(*policy);
    names = comma == std::string_view::npos ? std::string_view() : names.substr(comma + 1);
    if (comma != std::string_view::npos && names.empty()) return std::nullopt;
  }
  return policies;
}

std::string_view name(Policy policy) noexcept { return kPolicyNames[static_cast<std::size_t>(policy)]; }

bool parse_share(std::string_view text, Limits* limits) noexcept {
  double share = 0;
  std::uint32_t window = limits->window;
  const char* const end = text.data() + text.size();
  auto [at, error] = std::from_chars(text.data(), end, share);
  if (error != std::errc() || !(share > 0 && share <= 1)) return false;
  if (at != end) {
    if (*at != '/') return false;
    const auto [rest, wrong] = std::from_chars(at + 1, end, window);
    if (wrong != std::errc() || rest != end || window < 1 || window > 1'000'000) return false;
  }
  limits->share = share;
  limits->window = window;
  return true;
}

bool PolicyMachine::is_beyond(const Row& row) const noexcept {
  return (limits_.total != 0 && row.total > limits_.total) ||
         (limits_.share > 0 && static_cast<double>(row.recent.size()) > limits_.share * limits_.window);
}

Action PolicyMachine::on_alarm(std::uint32_t optimizer, std::uint64_t step, bool harmless) {
  const auto [it, fresh] = rows_.try_emplace(optimizer);
  Row& row = it->second;
  step += row.before;
  // A good step between ends the row. Two alarms of one step (bad at start, then in its window) are one skip.
  if (fresh || (step != row.last_bad_step && step != row.last_bad_step + 1)) {
    row.length = 1;
    // A smaller number is that of a step which is run again from a checkpoint: no good steps lie between.
    if (step > row.last_bad_step && step - row.last_bad_step > limits_.cool_down) row.stage = 0;
  } else if (step != row.last_bad_step && row.length != std::numeric_limits<std::uint32_t>::max()) {
    ++row.length;
  }
  const bool is_new = row.total == 0 || step != row.last_bad_step;
  if (is_new && row.total != std::numeric_limits<std::uint32_t>::max()) ++row.total;
  row.last_bad_step = step;
  if (is_new && limits_.share > 0) {
    row.recent.push_back(step);
    // A step that was run again from a checkpoint counts once more: its number may be smaller than the ones before.
    while (row.recent.front() + limits_.window <= step || row.recent.front() > step) row.recent.pop_front();
  }

  const bool is_beyond_any = is_beyond(row);
  if (is_new) row.has_changed = false;
  if (limits_.in_a_row > 0 && row.length > limits_.in_a_row && row.stage + 1 < policies_.size()) {
    ++row.stage;
    row.length = 1;
    row.has_changed = true;
  }
  const bool too_many = row.length > limits_.in_a_row || is_beyond_any;
  Action action = Action::kStop;
  switch (policies_[row.stage]) {
    case Policy::kWarn:
      action = is_beyond_any ? Action::kStop : Action::kApply;
      break;
    case Policy::kSkip:
      action = too_many ? Action::kStop : Action::kSkip;
      break;
    case Policy::kRollback:
      action = too_many ? Action::kStop : Action::kRollBack;
      break;
    case Policy::kLowerRate:  // once for a row: a second factor before a step was taken would say nothing new
      action = too_many ? Action::kStop : row.length == 1 && is_new ? Action::kLowerRate : Action::kSkip;
      break;
    // "stop and raise then act as warn, up to --max-skips in a row".
    case Policy::kStop:
      action = harmless && !too_many ? Action::kApply : Action::kStop;
      break;
    case Policy::kRaise:
      action = harmless && !too_many ? Action::kApply : Action::kRaise;
      break;
  }
  row.applied = action == Action::kApply;
  return action;
}

std::string PolicyMachine::beyond(std::uint32_t optimizer) const {
  const auto it = rows_.find(optimizer);
  if (it == rows_.end()) return {};
  const Row& row = it->second;
  if (limits_.total != 0 && row.total > limits_.total)
    return "bad steps: " + std::to_string(row.total) + ", and --max-bad lets " + std::to_string(limits_.total) +
           " pass";
  if (is_beyond(row)) {
    char share[32];
    std::snprintf(share, sizeof share, "%g", limits_.share);
    return "bad steps of the last " + std::to_string(limits_.window) + ": " + std::to_string(row.recent.size()) +
           ", and --max-bad-share lets a share of " + share + " pass";
  }
  if (row.has_changed)
    return "bad steps in a row: more than " + std::to_string(limits_.in_a_row) + "; from here on " +
           std::string(name(policies_[row.stage]));
  return {};
}

bool PolicyMachine::applied_although_bad(std::uint32_t optimizer, std::uint64_t step) const noexcept {
  const auto it = rows_.find(optimizer);
  return it != rows_.end() && it->second.applied && it->second.last_bad_step == step + it->second.before;
}

std::vector<Counted> PolicyMachine::counted(std::size_t most_steps) const {
  std::vector<Counted> all;
  for (const auto& [optimizer, row] : rows_) {
    Counted one{optimizer, row.length, row.total, static_cast<std::uint32_t>(row.stage), {}};
    const std::size_t first = row.recent.size() > most_steps ? row.recent.size() - most_steps : 0;
    for (std::size_t i = first; i < row.recent.size(); ++i)
      one.steps_ago.push_back(static_cast<std::uint32_t>(row.last_bad_step - row.recent[i]));
    all.push_back(std::move(one));
  }
  std::sort(all.begin(), all.end(), [](const Counted& a, const Counted& b) { return a.optimizer < b.optimizer; });
  return all;
}

void PolicyMachine::continue_from(const std::vector<Counted>& counted, std::uint32_t good_steps) {
  for (const Counted& one : counted) {
    Row row;
    row.length = std::max(one.in_a_row, 1u);
    row.total = std::max(one.total, 1u);
    row.stage = std::min<std::size_t>(one.stage, policies_.size() - 1);
    for (const std::uint32_t ago : one.steps_ago) row.last_bad_step = std::max<std::uint64_t>(row.last_bad_step, ago);
    if (limits_.share > 0) {
      for (const std::uint32_t ago : one.steps_ago) row.recent.push_back(row.last_bad_step - ago);
    }
    row.before = row.last_bad_step + 1 + good_steps;
    rows_[one.optimizer] = std::move(row);
  }
}

std::uint32_t PolicyMachine::in_a_row(std::uint32_t optimizer) const noexcept {
  const auto it = rows_.find(optimizer);
  return it == rows_.end() ? 0 : it->second.length;
}

bool SecondRuns::take(SinkKind sink, bool harmless, bool has_allowances, bool is_traced) noexcept {
  if (policy_ == Policy::kRaise) return false;
  // The report has one kind for both.
  const SinkKind kind = sink == SinkKind::kGradOutput ? SinkKind::kGradient : sink;
  const std::uint32_t bit = 1u << (2 * static_cast<unsigned>(kind) + (harmless ? 1 : 0));
  // Where the program continues, one explanation of a kind is enough; the alarm that ends it deserves its own.
  const bool goes_on = harmless || policy_ != Policy::kStop;
  const bool fresh = has_allowances || (left_ > 0 && !(goes_on && (explained_ & bit) != 0));
  if (!fresh && !is_traced) return false;
  if (!is_traced && left_ > 0) --left_;
  if (!is_traced) ++taken_;
  in_place_only_ = false;
  explained_ |= bit;
  return true;
}

bool SecondRuns::take_in_place() noexcept {
  if (policy_ == Policy::kRaise || taken_ >= kLimitInPlace) return false;
  ++taken_;
  in_place_only_ = true;
  return true;
}

}  // namespace finitude::decide
