#include "decide/policy.h"

#include <iterator>
#include <limits>

namespace finitude::decide {

std::optional<Policy> parse_policy(std::string_view name) noexcept {
  for (std::size_t i = 0; i < std::size(kPolicyNames); ++i) {
    if (kPolicyNames[i] == name) return static_cast<Policy>(i);
  }
  return std::nullopt;
}

std::string_view name(Policy policy) noexcept { return kPolicyNames[static_cast<std::size_t>(policy)]; }

Action PolicyMachine::on_alarm(std::uint32_t optimizer, std::uint64_t step, bool harmless) {
  const auto [it, fresh] = rows_.try_emplace(optimizer);
  Row& row = it->second;
  // A good step between ends the row. Two alarms of one step (bad at start, then in its window) are one skip.
  if (fresh || (step != row.last_bad_step && step != row.last_bad_step + 1)) {
    row.length = 1;
  } else if (step != row.last_bad_step && row.length != std::numeric_limits<std::uint32_t>::max()) {
    ++row.length;
  }
  row.last_bad_step = step;

  const bool too_many = row.length > max_skips_;
  Action action = Action::kStop;
  switch (policy_) {
    case Policy::kWarn:
      action = Action::kApply;
      break;
    case Policy::kSkip:
      action = too_many ? Action::kStop : Action::kSkip;
      break;
    case Policy::kRollback:
      action = too_many ? Action::kStop : Action::kRollBack;
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

bool PolicyMachine::applied_although_bad(std::uint32_t optimizer, std::uint64_t step) const noexcept {
  const auto it = rows_.find(optimizer);
  return it != rows_.end() && it->second.applied && it->second.last_bad_step == step;
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
