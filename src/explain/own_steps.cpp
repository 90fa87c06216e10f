#include "explain/own_steps.h"

#include <algorithm>
#include <string>

namespace finitude::explain {

void report_own_steps(Finding& finding, const Evidence& evidence) {
  const record::Trace& trace = evidence.trace;
  if (evidence.birth >= evidence.located.births.size()) return;  // nothing is known to be born
  const locate::Birth& birth = evidence.located.births[evidence.birth];
  const bool written = std::ranges::any_of(trace.sinks, [](const auto& sink) { return sink.kind == "parameter"; });
  if (!written || birth.kind != "forward" || birth.op >= trace.ops.size()) return;
  const record::Op& op = trace.ops[birth.op];
  const record::Frame* line = top_frame(trace, op.stack);
  if (!line) return;
  std::size_t before = 0;
  for (record::OpId id = 0; id < birth.op; ++id) {
    const record::Op& other = trace.ops[id];
    const record::Frame* own = other.name == op.name ? top_frame(trace, other.stack) : nullptr;
    const auto same = [](const record::TensorUse& a, const record::TensorUse& b) { return a.shape == b.shape; };
    if (own && own->file == line->file && own->line == line->line && !bad_output(other) &&
        std::ranges::equal(other.outputs, op.outputs, same))
      ++before;
  }
  if (before == 0) return;
  finding.text += "; in " + counted(before, "earlier evaluation") +
                  " within the same step it was finite: the optimizer itself moved the parameters to where it is not";
  finding.clamps_divisor = false;
  if (!finding.fix_text.empty()) finding.fix_text = "; or " + finding.fix_text;
  finding.fix_text =
      "shorter steps of the optimizer: a smaller lr, or line_search_fn=\"strong_wolfe\" of LBFGS (not "
      "tried here)" +
      finding.fix_text;
}

}  // namespace finitude::explain
