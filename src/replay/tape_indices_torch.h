// Kernels that take the integers of an argument for granted and read or write outside of memory where these are wrong.
// The caller that calls an operator with values that no training made (another row tried, a tape from elsewhere) looks
// at them first.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <vector>

namespace finitude::replay {

// Throws c10::Error, with the argument's name, before such a call. Costs nothing for other operators but a look at the
// name.
void check_trusted_indices(const c10::FunctionSchema& schema, const std::vector<c10::IValue>& arguments);

}  // namespace finitude::replay
