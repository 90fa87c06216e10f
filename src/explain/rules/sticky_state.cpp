// Running statistics or an average that took in a bad value and keeps it: later steps are bad though their
// inputs are not.
#include "explain/probe.h"
#include "explain/rules/rules.h"

namespace finitude::explain {
namespace {

bool is_running(const record::Trace& trace, record::StorageId storage) {
  return storage < trace.storages.size() && trace.storages[storage].origin == record::Origin::kBuffer;
}

class StickyState : public Rule {
 public:
  const char* name() const override { return "sticky-state"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    const char* fix = "reset the statistic, and update it only from finite values";
    // A buffer that was bad when this step began, though steps before it were good: an earlier update
    // poisoned it.
    if (s.birth.kind == "state" && !s.op && is_running(s.trace, s.birth.storage) && !evidence.history.loss.empty()) {
      const std::string& name = s.trace.storages[s.birth.storage].name;
      Finding result = finding(
          s, "sticky-state", kScoreOrigin + 10,
          (name.empty() ? "a running statistic" : name) +
              " holds a bad value that no operation of this step wrote (an earlier step, or code that PyTorch does "
              "not see), and keeps it",
          fix);
      conclude(result, true);
      return result;
    }
    // Or the update of such a buffer itself, where nothing more is known about the arithmetic.
    if (!s.op || s.backward || s.birth.kind == "state") return std::nullopt;
    for (const auto& use : s.op->outputs) {
      if (use.health.ok() || !is_running(s.trace, use.storage)) continue;
      const std::string& name = s.trace.storages[use.storage].name;
      Finding result = finding(s, "sticky-state", kScoreSinkOnly,
                               s.op->name + " writes a non-finite value into " +
                                   (name.empty() ? "a running statistic" : name) + ", which keeps it",
                               fix);
      conclude(result, false);
      return result;
    }
    return std::nullopt;
  }
};

}  // namespace

std::unique_ptr<Rule> sticky_state() { return std::make_unique<StickyState>(); }

}  // namespace finitude::explain
