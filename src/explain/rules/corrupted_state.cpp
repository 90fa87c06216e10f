// A parameter, optimizer state or buffer that was bad before the step began, or that the program made bad between
// two updates: a checkpoint, an initial value, a write in place.
#include <cmath>

#include "explain/probe.h"
#include "explain/rules/rules.h"

namespace finitude::explain {
namespace {

std::string amount(const sense::Health& health) {
  if (health.nan == 0) return std::to_string(health.inf()) + " Inf";
  return std::to_string(health.nan) + " NaN" + (health.inf() ? " and " + std::to_string(health.inf()) + " Inf" : "");
}

// The first bad look at this memory that an operator of the step took in, each value once: as it is, rather than
// expanded. The operator may be given other bad values beside it.
const record::TensorUse* whole(const record::Trace& trace, record::StorageId storage) {
  const record::TensorUse* first = nullptr;
  for (const auto& op : trace.ops) {
    for (const auto& use : op.inputs) {
      if (use.storage != storage || use.health.ok()) continue;
      const auto size = static_cast<std::int64_t>(sense::info(use.dtype).size_bytes);
      if (size == 0 || static_cast<std::int64_t>(use.health.numel) * size <= use.end - use.begin) return &use;
      if (first == nullptr) first = &use;
    }
  }
  return first;
}

// The first argument that is a number of the program and not finite, "other = -Inf" of t.mul_(momentum); or empty. What
// a call fills or copies memory with is a value like any other, an initial one as a rule.
std::string bad_number(const record::Trace& trace, const record::Op& op) {
  if (!one_of(plain_name(op.name), {"mul", "div", "add", "sub", "lerp", "addcmul", "addcdiv", "pow"})) return {};
  for (const auto& use : op.inputs) {
    const auto value = constant(trace, Operand{.tensor = &use});
    if (value && !std::isfinite(*value)) return use.arg + " = " + figure(*value);
  }
  for (const auto& scalar : op.scalars)
    if (scalar.number && !std::isfinite(*scalar.number)) return scalar.arg + " = " + figure(*scalar.number);
  return {};
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
    if (const auto* use = whole(s.trace, s.birth.storage))
      text = what + " holds " + amount(use->health) + " of " + counted(use->health.numel, "value") +
             (s.birth.rows_of == 0 ? at_rows(s.birth) : "") + " before the step began";
    if (s.op) {
      const auto* bad = bad_output(*s.op);
      text = s.op->name + " puts " + (bad ? amount(bad->health) : std::string("NaN or Inf")) + " into " + what +
             ", outside of the optimizer's step";
    }
    const std::string number = s.op ? bad_number(s.trace, *s.op) : std::string();
    if (!number.empty()) text += "; it is given the number " + number;
    Finding result = finding(
        s, "corrupted-state", kScoreOrigin, text,
        !number.empty() ? "look where that number comes from (0 / 0, a schedule past its end), and keep it finite"
        : s.op          ? "write finite values at this line; where they come from a checkpoint, load an earlier one"
                        : "look at what " + what +
                     " was loaded from or made of, and mend it there; or load an earlier "
                     "checkpoint");
    if (s.op) {
      mend_at(s.trace, *s.op,
              &result);  // the write, not where its source was made: what is loaded may be bad in a file of any age
    } else {             // the line that reads it is not the one to mend
      result.fix_file.clear();
      result.fix_line = 0;
    }
    conclude(result, true);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> corrupted_state() { return std::make_unique<CorruptedState>(); }

}  // namespace finitude::explain
