// From the trace of a step to what the report says of it: births located, cause and fix explained.
#pragma once

#include <cstddef>

#include <nlohmann/json_fwd.hpp>

#include "explain/explain.h"
#include "record/trace.h"

namespace finitude::show {

struct AnalysisOptions {
  std::size_t ops = 0;     // list so many of the ops as well
  bool swallowed = false;  // where nothing bad reached a sink, the overflows that arithmetic took in are the births
};

// {births, cause, fix, path, num_ops, truncated, absorbed}, and ops if asked for. `lab` may be null.
nlohmann::json analysis(const record::Trace& trace, const explain::StepHistory& history, explain::Lab* lab,
                        const AnalysisOptions& options = {});

}  // namespace finitude::show
