// Fused operators by plain ones: what a kernel computes in one go, as textbooks write it, by exp, sum, mul and their
// like.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

namespace finitude::replay {

// The results that matter, in the order of the operator's own; nothing where no plain form of it is known. Numbers of
// half precision are computed in float32 and rounded at the end, as kernels do. Throws where a form does not hold for
// these arguments (a dropout, a reduction that there is not).
std::vector<at::Tensor> by_parts(const std::string& op, const c10::FunctionSchema& schema,
                                 const std::vector<c10::IValue>& arguments);

}  // namespace finitude::replay
