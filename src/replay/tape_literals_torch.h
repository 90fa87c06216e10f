// Values as Python text: what a script is made of.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <string_view>

namespace finitude::replay {

// Every bit of a number comes back: "0.1", "-0.0", "inf", "nan".
std::string python_number(double value);
std::string python_text(std::string_view text);
// "torch.float32".
std::string python_dtype(c10::ScalarType dtype);
// The values as nested lists; strides do not show. Not for sparse tensors.
std::string python_list(const at::Tensor& tensor);
// An argument that is no tensor. The type says what a number represents: dtype, layout, memory format.
std::string python_scalar(const c10::IValue& value, const c10::Argument& argument);
// A name that Python takes: "self", "from_".
std::string python_name(const std::string& name);

}  // namespace finitude::replay
