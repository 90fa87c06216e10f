// The gradient that a parameter has now, and one look at its values.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>

#include "observe/gradient_look_torch.h"

namespace finitude::bindings {

using observe::GradMark;

// The gradient of a parameter, null if it has none; its version; and what one look at its values says.
const at::Tensor* gradient_of(PyObject* parameter);
using observe::version_of;
inline GradMark judge(const at::Tensor& gradient) { return observe::judge_gradient(gradient); }

}  // namespace finitude::bindings
