// A parameter, optimizer state or buffer that was bad before the step began: a checkpoint or an initial
// value.
#include "explain/probe.h"
#include "explain/rules/rules.h"

namespace finitude::explain {
namespace {

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
    Finding result = finding(s, "corrupted-state", kScoreOrigin, text,
                             "load an earlier checkpoint (finitude scan CHECKPOINT tells which is sound), or "
                             "initialise the value");
    conclude(result, true);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> corrupted_state() { return std::make_unique<CorruptedState>(); }

}  // namespace finitude::explain
