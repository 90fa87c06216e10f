// What is done about an alarm: the policies in their order, the limits of bad steps, and the budget of second runs.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "decide/window.h"

namespace finitude::decide {

// stop: veto, explain, end the program. skip: the same, but continue. warn: explain, apply the step. raise: veto and
// end at once, no second run. rollback: as skip, from the last good state. lower-rate: as skip, and the first bad step
// of a row lowers the learning rate; it only follows another policy.
enum class Policy : std::uint8_t { kStop, kSkip, kWarn, kRaise, kRollback, kLowerRate };

inline constexpr std::string_view kPolicyNames[] = {"stop", "skip", "warn", "raise", "rollback", "lower-rate"};

std::optional<Policy> parse_policy(std::string_view name) noexcept;
std::string_view name(Policy policy) noexcept;

enum class Action : std::uint8_t {
  kApply,      // reported; the optimizer may apply the step
  kSkip,       // the step is skipped and training continues
  kRollBack,   // as kSkip, and parameters and state go back to the last good ones
  kLowerRate,  // as kSkip, and the learning rate of the optimizer is lowered
  kStop,       // the step is skipped and NonFiniteError ends the program
  kRaise,      // the same, without a second run
};

// Vetoes the step?
constexpr bool vetoes(Action action) noexcept { return action != Action::kApply; }
constexpr bool ends(Action action) noexcept { return action == Action::kStop || action == Action::kRaise; }

// How many bad steps of an optimizer a program may have and continue.
struct Limits {
  std::uint32_t in_a_row = 0;  // of a policy that skips or that another one follows, and of harmless alarms
  std::uint32_t total = 0;     // of any policy; 0: no limit
  double share = 0;            // of the last `window` steps, of any policy; 0: no limit
  std::uint32_t window = 100;
  std::uint32_t cool_down = 100;  // good steps after which the first policy holds again
};

// What a machine has counted of one optimizer: enough for the machine of another process to continue.
struct Counted {
  std::uint32_t optimizer = 0, in_a_row = 0, total = 0;
  std::uint32_t stage = 0;               // which of the policies holds
  std::vector<std::uint32_t> steps_ago;  // bad steps of the window of a share, before the last bad one; falling
};

// "P" or "P/W": a share above 0 and at most 1, and a window of 1 to 1,000,000 steps. False: `text` is neither, and
// nothing is written.
bool parse_share(std::string_view text, Limits* limits) noexcept;

// "rollback,stop": names with commas, in their order. Nothing: one of them is no policy.
std::optional<std::vector<Policy>> parse_policies(std::string_view names);

// One per run. Not thread-safe: it lives where `step` is called.
//
// Where limits.in_a_row bad steps of an optimizer did not end under a policy, the next one of `then` holds for it;
// after the last one the program is stopped. After limits.cool_down good steps the first holds again.
class PolicyMachine {
 public:
  PolicyMachine(Policy policy, const Limits& limits, const std::vector<Policy>& then = {})
      : policies_{policy}, limits_(limits) {
    for (const Policy next : then) policies_.push_back(next);  // insert() warns of bounds in GCC 12
  }

  // An alarm of this optimizer (its ordinal) at this step (0-based calls of its `step`, vetoed ones counted).
  // What finitude.allow covers is no alarm and does not come here.
  Action on_alarm(std::uint32_t optimizer, std::uint64_t step, bool harmless);

  // Was this step applied although it was reported as bad? Then what it wrote is not news.
  bool applied_although_bad(std::uint32_t optimizer, std::uint64_t step) const noexcept;
  // Alarms in a row of this optimizer, one for each step.
  std::uint32_t in_a_row(std::uint32_t optimizer) const noexcept;

  // Of each optimizer that had a bad step, by ordinal; of each at most the newest `most_steps` steps.
  std::vector<Counted> counted(std::size_t most_steps) const;
  // Before the first alarm: this machine continues from what another one has counted. Step 0 is then the step after
  // the last bad one and `good_steps` good ones. Numbers from elsewhere are bounded, not trusted.
  void continue_from(const std::vector<Counted>& counted, std::uint32_t good_steps);

  // The limit that the last alarm of this optimizer went beyond, in words with its numbers, and the policy that holds
  // from there on where one follows; empty: none.
  std::string beyond(std::uint32_t optimizer) const;

 private:
  struct Row {
    std::uint64_t before = 0;  // steps that another process took, added to the number of each step
    std::uint64_t last_bad_step = 0;
    std::uint32_t length = 0, total = 0;
    std::size_t stage = 0;  // index into policies_
    bool applied = false;
    bool has_changed = false;          // stage, at the last bad step
    std::deque<std::uint64_t> recent;  // bad steps of the last `window`, where a share is limited
  };
  bool is_beyond(const Row& row) const noexcept;  // of the limits that hold for any policy

  std::vector<Policy> policies_;
  Limits limits_;
  std::unordered_map<std::uint32_t, Row> rows_;
};

// How many alarms of a run are explained by a second run, and in which ways. Those that follow are reported without.
class SecondRuns {
 public:
  static constexpr std::uint32_t kLimit = 3;         // in any way, a whole second process included
  static constexpr std::uint32_t kLimitInPlace = 8;  // all together: as many as there are capsules kept of a run

  explicit SecondRuns(Policy policy, std::uint32_t limit = kLimit) noexcept : policy_(policy), left_(limit) {}

  // `has_allowances`: whether a birth is allowed is known only once it is explained, so every alarm is.
  // `is_traced`: the step was recorded as it ran (--level trace), so explaining it costs no second run.
  // True: explain it, and it is counted.
  bool take(SinkKind sink, bool harmless, bool has_allowances, bool is_traced) noexcept;

  // Of an alarm that take() has refused. True: explain it all the same where that costs a step or two, and it is
  // counted. The step may have failed for another reason than the one before it, on other samples.
  bool take_in_place() noexcept;
  // Is the one that was counted last of that sort?
  bool in_place_only() const noexcept { return in_place_only_; }
  // This program's steps cannot be run again in place.
  void end_in_place() noexcept { taken_ = kLimitInPlace; }

  std::uint32_t left() const noexcept { return left_; }

 private:
  Policy policy_;
  std::uint32_t left_;
  std::uint32_t taken_ = 0;
  bool in_place_only_ = false;
  std::uint32_t explained_ = 0;  // a bit per sink kind, harmless and not
};

}  // namespace finitude::decide
