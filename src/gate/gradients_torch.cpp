#include "gate/gradients_torch.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include "pyhost/tensor_subclass_torch.h"

namespace finitude::bindings {

const at::Tensor* gradient_of(PyObject* parameter) {
  if (!THPVariable_Check(parameter)) return nullptr;
  const at::Tensor& p = THPVariable_Unpack(parameter);
  const auto* meta = torch::autograd::impl::get_autograd_meta(p);
  return meta != nullptr && meta->grad_.defined() ? &local_of(meta->grad_) : nullptr;
}

}  // namespace finitude::bindings
