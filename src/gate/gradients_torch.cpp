#include "gate/gradients_torch.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include "pyhost/is_tensor_torch.h"
#include "pyhost/tensor_subclass_torch.h"

namespace finitude::bindings {

// Reads the autograd metadata: Tensor.grad would make a Python object, and warn for a tensor that is no leaf. The
// pointer is valid until the gradient is replaced. Of a DTensor it is the local shard.
const at::Tensor* gradient_of(PyObject* parameter) {
  if (!is_tensor_object(parameter)) return nullptr;
  const at::Tensor& p = THPVariable_Unpack(parameter);
  const auto* meta = torch::autograd::impl::get_autograd_meta(p);
  return meta != nullptr && meta->grad_.defined() ? &local_of(meta->grad_) : nullptr;
}

}  // namespace finitude::bindings
