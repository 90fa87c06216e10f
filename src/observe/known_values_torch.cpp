#include "observe/known_values_torch.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "observe/gradient_look_torch.h"

namespace finitude::observe {

bool has_graph(const at::Tensor& tensor) {
  try {
    return tensor.grad_fn() != nullptr;
  } catch (const c10::Error&) {  // of a view whose base was written no node can be made: it had one
    return true;
  }
}

KnownValues::AsItWas::AsItWas(const at::Tensor& t)
    : tensor(t.getIntrusivePtr()), version(version_of(*t.unsafeGetTensorImpl())) {}

at::Tensor KnownValues::AsItWas::now() const {
  c10::intrusive_ptr<c10::TensorImpl> held = tensor.lock();
  return held && version_of(*held) == version ? at::Tensor(std::move(held)) : at::Tensor();
}

void KnownValues::note(const at::Tensor& tensor) {
  std::erase_if(values_, [](const AsItWas& one) { return !one.now().defined(); });
  if (!contains(tensor)) values_.push_back(AsItWas(tensor));
}

bool KnownValues::contains(const at::Tensor& tensor) const {
  return std::ranges::any_of(values_, [&](const AsItWas& one) { return one.now().is_same(tensor); });
}

std::vector<at::Tensor> KnownValues::unwritten() const {
  std::vector<at::Tensor> found;
  for (const AsItWas& one : values_) {
    if (at::Tensor tensor = one.now(); tensor.defined()) found.push_back(std::move(tensor));
  }
  return found;
}

}  // namespace finitude::observe
