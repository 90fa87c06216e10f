#include "show/analysis.h"

#include <nlohmann/json.hpp>

#include "locate/slice.h"
#include "show/findings.h"

namespace finitude::show {

nlohmann::json analysis(const record::Trace& trace, const explain::StepHistory& history, explain::Lab* lab,
                        const AnalysisOptions& options) {
  locate::Located located = locate::locate(trace);
  if (options.swallowed && located.births.empty()) located.births = locate::swallowed_overflows(trace, located);
  explain::Finding finding;
  finding.cause_class = "unknown";
  finding.confidence = "possible";
  if (!located.births.empty()) finding = explain::explain({trace, located, 0, history, lab});
  nlohmann::json out = findings(trace, located, finding);
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
