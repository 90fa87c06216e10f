// Asks every rule and keeps the best finding.
#include "explain/explain.h"

#include <algorithm>
#include <utility>

#include "explain/decompose.h"
#include "explain/edits.h"
#include "explain/evidence.h"
#include "explain/layers.h"
#include "explain/own_steps.h"
#include "explain/size_origin.h"
#include "explain/without_half.h"
#include "explain/wrapped.h"
#include "explain/zero_origin.h"

namespace finitude::explain {

namespace {

Finding unknown(const Evidence& evidence) {
  const Scene scene(evidence);
  if (scene.op && plain_name(scene.op->name) == "lift_fresh") {
    return finding(scene, "unknown", 0,
                   "memory that other code filled (NumPy, an extension), where no operation is seen",
                   "check what that code is given, and for what of it its result is not finite");
  }
  std::string text = "no rule explains this birth";
  if (scene.op) text = scene.op->name + " makes a non-finite value, and no rule explains why";
  if (evidence.trace.truncated) text += "; the trace is incomplete";
  if (scene.op && !scene.op->captured)
    text += "; its operands were not kept, so running it again in float64 could not be tried";
  else if (!evidence.lab)
    text += "; running it again in float64 and on single rows would show more";
  Finding result = finding(scene, "unknown", 0, text, "");
  return result;
}

std::optional<Finding> best_of(const Evidence& evidence, bool half) {
  std::optional<Finding> best;
  for (const auto& rule : rules()) {
    std::optional<Finding> found = rule->judge(evidence);
    if (found && !half && found->cause_class.starts_with(kHalf)) continue;
    if (found && (!best || found->score > best->score)) best = std::move(found);
  }
  if (!best) return best;
  const std::vector<replay::Edit> wide = best->edits;
  also_at_other_births(*best, evidence);
  also_at_guilty_calls(*best, wide, evidence);
  also_where_it_is_read_again(*best, evidence);
  also_at_other_readers(*best, evidence);
  // A softmax less its maximum is what was meant; a clamp makes another number of it.
  std::ranges::stable_partition(best->edits, [](const auto& edit) { return edit.kind == replay::Edit::Kind::kShift; });
  return best;
}

}  // namespace

Finding explain(const Evidence& evidence) {
  if (const auto divisor = infinite_divisor(evidence)) {
    Finding found = explain({evidence.trace, evidence.located, divisor->birth, evidence.history, evidence.lab});
    found.text += divisor->then;
    return found;
  }
  Finding best = best_of(evidence, true).value_or(unknown(evidence));
  report_wrapped(best, evidence);
  report_size_origin(best, evidence);
  report_zero_origin(best, evidence);
  report_layers(best, evidence);
  report_own_steps(best, evidence);
  report_by_parts(best, evidence);
  return best;
}

std::optional<Finding> explain_without_half(const Evidence& evidence) {
  std::optional<Finding> best = best_of(evidence, false);
  if (best) {
    report_wrapped(*best, evidence);
    report_size_origin(*best, evidence);
    report_zero_origin(*best, evidence);
    report_layers(*best, evidence);
    report_own_steps(*best, evidence);
    report_by_parts(*best, evidence);
  }
  return best;
}

}  // namespace finitude::explain
