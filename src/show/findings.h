// What was located and explained, as the "births", "cause", "fix" and "path" of the report (docs/report.schema.json).
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "explain/explain.h"
#include "locate/slice.h"
#include "record/trace.h"

namespace finitude::show {

// Numbers that JSON cannot hold become "NaN", "Infinity", "-Infinity".
nlohmann::json number(double value);
nlohmann::json statistics(const record::TensorUse& use);
nlohmann::json birth(const record::Trace& trace, const locate::Birth& birth);
// {births, cause, fix, path} of one alarm.
nlohmann::json findings(const record::Trace& trace, const locate::Located& located, const explain::Finding& finding);
// Every op with its statistics and the growth of its output over its largest input.
nlohmann::json op_table(const record::Trace& trace, std::size_t max_ops);

// Parts of a row.
const char* dtype_name(sense::DType dtype);
std::size_t depth_of(const record::Trace& trace, const record::Op& op);  // ops that enclose it, without nodes
std::optional<double> growth_of(const record::Op& op);  // infinite where an output is not finite; none: not known

}  // namespace finitude::show
