// From the trace of a step to what the report says of it: births located, cause and fix explained.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "explain/explain.h"
#include "record/trace.h"
#include "replay/edit.h"

namespace finitude::show {

struct AnalysisOptions {
  std::size_t ops = 0;     // list so many of the ops as well
  bool swallowed = false;  // where nothing bad reached a sink, the overflows that arithmetic took in are the births
  // Gives the captured step, to try the fix on, or null where there is none; asked only if there is a birth. And the
  // most seconds that this may take; 0: it is not tried.
  std::function<replay::StepLab*()> step;
  double seconds = 0;
  // Rules beside ours: may put a finding of their own in its place, and give their name then, else "". Empty: there are
  // none.
  std::function<std::string(const explain::Evidence&, explain::Finding*)> own_rules;
};

// {births, cause, fix, path, num_ops, truncated, absorbed}, and ops if asked for. `lab` may be null.
nlohmann::json analysis(const record::Trace& trace, const explain::StepHistory& history, explain::Lab* lab,
                        const AnalysisOptions& options = {});

}  // namespace finitude::show
