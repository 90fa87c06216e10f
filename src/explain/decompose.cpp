#include "explain/decompose.h"

#include <cmath>
#include <string>

#include "explain/evidence.h"

namespace finitude::explain {
namespace {

// NaN weighs more than Inf, which is what becomes of it sooner or later.
std::string flaw_of(const std::vector<sense::Health>& outputs) {
  std::uint64_t nan = 0, pos = 0, neg = 0;
  for (const sense::Health& health : outputs) nan += health.nan, pos += health.pos_inf, neg += health.neg_inf;
  return nan != 0 ? "NaN" : pos == 0 && neg == 0 ? "" : neg > pos ? "-Inf" : "Inf";
}

std::string flaw_of(const record::Op& op) {
  std::vector<sense::Health> all;
  for (const record::TensorUse& use : op.outputs) all.push_back(use.health);
  return flaw_of(all);
}

}  // namespace

void report_by_parts(Finding& finding, const Evidence& evidence) {
  if (evidence.lab == nullptr) return;
  const Scene scene(evidence);
  record::OpId id = scene.culprit;
  for (int depth = 0; id < scene.trace.ops.size() && depth < 8; ++depth, id = scene.trace.ops[id].parent) {
    const record::Op& op = scene.trace.ops[id];
    if (op.is_node) return;
    const std::string was = flaw_of(op);
    if (!op.captured || was.empty()) continue;
    Variant variant;
    variant.by_parts = true;
    const Trial trial = evidence.lab->run(id, variant);
    if (!trial.ran) continue;
    const std::string now = flaw_of(trial.outputs);
    Experiment experiment{plain_name(op.name) + " by plain operations",
                          now.empty()  ? "finite: the " + was + " comes from how its kernel computes it"
                          : now == was ? "still " + now
                                       : now + " where it made " + was};
    experiment.predicted = false;
    finding.experiments.push_back(std::move(experiment));
    return;
  }
}

}  // namespace finitude::explain
