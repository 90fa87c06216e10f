#include "show/analysis.h"

#include <nlohmann/json.hpp>

#include "explain/fix.h"
#include "locate/slice.h"
#include "show/findings.h"

namespace finitude::show {
namespace {

// The first dimension of what the birth made is not always that of the batch: attention folds its heads into it, a mean
// has none. The search then knows better which samples it was.
bool rows_are_samples(const record::Trace& trace, const locate::Birth& birth, std::int64_t samples) {
  if (birth.rows.empty() || birth.op >= trace.ops.size()) return false;
  for (const record::TensorUse& use : trace.ops[birth.op].outputs) {
    if (!use.health.ok()) return !use.shape.empty() && use.shape[0] == samples;
  }
  return false;
}

}  // namespace

nlohmann::json analysis(const record::Trace& trace, const explain::StepHistory& history, explain::Lab* lab,
                        const AnalysisOptions& options) {
  locate::Located located = locate::locate(trace);
  if (options.swallowed && located.births.empty()) located.births = locate::swallowed_overflows(trace, located);
  explain::Finding finding;
  finding.cause_class = "unknown";
  finding.confidence = "possible";
  std::string own_rule;
  if (!located.births.empty()) {
    const explain::Evidence evidence{trace, located, 0, history, lab};
    finding = explain::explain(evidence);
    if (options.own_rules) own_rule = options.own_rules(evidence, &finding);
    if (replay::StepLab* step = options.step && options.seconds > 0 ? options.step() : nullptr) {
      finding.rows = located.births[0].rows;
      explain::TimeBudget budget;
      budget.most = options.seconds;
      explain::try_on_step(finding, *step, budget, &trace);
      if (!finding.guilty.empty() && !rows_are_samples(trace, located.births[0], finding.batch_rows))
        located.births[0].rows = finding.guilty;
    }
  }
  nlohmann::json out = findings(trace, located, finding);
  if (!own_rule.empty()) out["cause"]["rule"] = own_rule;
  out["num_ops"] = trace.ops.size();
  out["truncated"] = trace.truncated;
  out["absorbed"] = nlohmann::json::array();
  for (std::size_t i = 0; i < located.absorbed.size() && i < 16; ++i) {
    out["absorbed"].push_back(birth(trace, located.absorbed[i]));
  }
  if (options.ops != 0) out["ops"] = op_table(trace, options.ops);
  return out;
}

}  // namespace finitude::show
