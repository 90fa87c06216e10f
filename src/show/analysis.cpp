#include "show/analysis.h"

#include <nlohmann/json.hpp>

#include "explain/fix.h"
#include "locate/slice.h"
#include "show/findings.h"

namespace finitude::show {
namespace {

// Whether the rows of the birth are samples of the batch. The first dimension of what it made is not always that of the
// batch: attention folds its heads into it, a linear layer the steps of a sequence, a mean has none. And memory as it was
// handed out is bad as a whole: which of it is still bad when it is read, only the search tells.
bool rows_are_samples(const record::Trace& trace, const locate::Birth& birth, std::int64_t samples) {
  if (birth.rows.empty() || birth.op >= trace.ops.size() || trace.ops[birth.op].allocates) return false;
  for (const record::TensorUse& use : trace.ops[birth.op].outputs) {
    if (!use.health.ok()) return !use.shape.empty() && use.shape[0] == samples;
  }
  return false;
}

// Rows of the birth become samples of the batch; those of the tensor itself stay with the tensor.
void name_samples(const explain::Finding& finding, nlohmann::json* birth) {
  for (nlohmann::json& output : (*birth)["outputs"]) {
    if (output["nan"] == 0 && output["inf"] == 0) continue;
    output["rows"] = (*birth)["rows"];
    break;
  }
  (*birth)["rows"] = finding.guilty;
  (*birth)["rows_of"] = finding.batch_rows;
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
  bool samples = false;
  if (!located.births.empty()) {
    const explain::Evidence evidence{trace, located, 0, history, lab};
    finding = explain::explain(evidence);
    if (options.own_rules) own_rule = options.own_rules(evidence, &finding);
    if (replay::StepLab* step = options.step && options.seconds > 0 ? options.step() : nullptr) {
      finding.rows = located.births[0].rows;
      finding.born_in = located.births[0].first_reader != record::kNone ? located.births[0].first_reader : located.births[0].op;
      explain::TimeBudget budget;
      budget.most = options.seconds;
      explain::try_on_step(finding, *step, budget, &trace);
      if (!finding.guilty.empty() && !rows_are_samples(trace, located.births[0], finding.batch_rows))
        samples = true;
    }
  }
  nlohmann::json out = findings(trace, located, finding);
  if (samples) name_samples(finding, &out["births"][0]);
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
