// A tensor of a replay in words and numbers.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

#include "finitude/health.h"

namespace finitude::replay {

// "float32 [8, 4]  2 NaN  min -1.5  max 3"; of a sparse tensor its values. Integers have no range.
std::string describe(const at::Tensor& tensor);
std::string form_of(const at::Tensor& tensor);  // "float32 [8, 4]"
sense::Health health_of(const at::Tensor& tensor);

struct NamedTensor {
  std::string name;  // of the argument or result: "self", "tensors.2", "result"
  at::Tensor tensor;
};
// The defined tensors among arguments or results, also those in lists. A result that its schema does not name
// is "result", or "result1" and so on where there are several.
std::vector<NamedTensor> tensors_of(const std::vector<c10::Argument>& schema, c10::ArrayRef<c10::IValue> values);
// Of the arguments those that the operator writes.
std::vector<NamedTensor> written_of(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments);

// torch computes with no number of eight bits, nor says whether one is finite: as float32. Others as they are.
at::Tensor with_arithmetic(const at::Tensor& tensor);

// A copy in memory of its own, of the CPU, in the same layout where it has no overlap.
at::Tensor copy_of(const at::Tensor& tensor);

}  // namespace finitude::replay
