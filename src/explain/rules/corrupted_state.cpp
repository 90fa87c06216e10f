// A parameter, optimizer state or buffer that was bad before the step began, or that the program made bad between
// two updates: a checkpoint, an initial value, a write in place.
#include "explain/probe.h"
#include "explain/rules/rules.h"

namespace finitude::explain {
namespace {

std::string amount(const sense::Health& health) {
  if (health.nan == 0) return std::to_string(health.inf()) + " Inf";
  return std::to_string(health.nan) + " NaN" + (health.inf() ? " and " + std::to_string(health.inf()) + " Inf" : "");
}

class CorruptedState : public Rule {
 public:
  const char* name() const override { return "corrupted-state"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    if (s.birth.kind != "state") return std::nullopt;
    std::string what = "a parameter, buffer or optimizer state";
    if (s.birth.storage < s.trace.storages.size()) {
      const auto& storage = s.trace.storages[s.birth.storage];
      if (!storage.name.empty()) what = storage.name;
    }
    std::string text = what + " holds NaN or Inf before the step began";
    if (s.birth.first_reader < s.trace.ops.size())
      if (const auto* bad = bad_input(s.trace.ops[s.birth.first_reader]))
        text = what + " holds " + std::to_string(bad->health.nan) + " NaN and " +
               std::to_string(bad->health.inf()) + " Inf of " + counted(bad->health.numel, "value") +
               " before the step began";
    if (s.op) {
      const auto* bad = bad_output(*s.op);
      text = s.op->name + " puts " + (bad ? amount(bad->health) : std::string("NaN or Inf")) + " into " + what +
             ", outside of the optimizer's step";
    }
    Finding result = finding(s, "corrupted-state", kScoreOrigin, text,
                             "load an earlier checkpoint (finitude scan CHECKPOINT tells which is sound), or "
                             "initialise the value");
    if (s.op && s.op->stack < s.trace.stacks.size() && !s.trace.stacks[s.op->stack].frames.empty()) {
      // The write, not where its source was made: what is loaded may be bad in a file of any age.
      result.fix_file = s.trace.stacks[s.op->stack].frames.front().file;
      result.fix_line = s.trace.stacks[s.op->stack].frames.front().line;
    }
    conclude(result, true);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> corrupted_state() { return std::make_unique<CorruptedState>(); }

}  // namespace finitude::explain
