// The tensors among what an operator is given and what it returns, and the memory that holds their values.
#pragma once

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>

#include "observe/concrete_torch.h"
#include "observe/tensor_view_torch.h"

namespace finitude::observe {

inline constexpr std::size_t kMaxListed = 4096;  // tensors of one list argument

inline bool is_list_of_tensor_lists(const c10::IValue& value) {
  if (!value.isList()) return false;
  const auto lists = value.toListRef();
  return !lists.empty() && lists.front().isTensorList();
}

// Every tensor of an argument or result; false: it holds none by its type.
template <typename Use>
bool for_each_tensor(const c10::IValue& value, const Use& use) {
  if (value.isTensor()) {
    use(value.toTensor());
  } else if (value.isTensorList()) {
    const auto list = value.toTensorVector();
    for (std::size_t i = 0; i < list.size() && i < kMaxListed; ++i) use(list[i]);
  } else if (value.isOptionalTensorList()) {
    for (const auto& t : value.toOptionalTensorVector()) {
      if (t) use(*t);
    }
  } else if (is_list_of_tensor_lists(value)) {  // of collective operations: what each rank gives or gets
    std::size_t listed = 0;
    for (const c10::IValue& list : value.toListRef()) {
      for (const at::Tensor& t : list.toTensorVector())
        if (listed++ < kMaxListed) use(t);
    }
  } else {
    return false;
  }
  return true;
}

// Of a sparse tensor the values, which lie in memory as those of a dense one do; of any other itself. Calls no
// operator.
inline at::Tensor with_memory(const at::Tensor& t) {
  using c10::DispatchKey;
  if (!t.defined()) return t;
  const c10::TensorImpl& impl = *t.unsafeGetTensorImpl();
  const c10::DispatchKeySet keys = impl.key_set();
  if (!is_concrete(impl)) return t;  // a wrapper has the keys of what it wraps
  if (keys.has(DispatchKey::SparseCPU) || keys.has(DispatchKey::SparseCUDA))
    return static_cast<const at::SparseTensorImpl&>(impl).values();
  if (keys.has(DispatchKey::SparseCsrCPU) || keys.has(DispatchKey::SparseCsrCUDA))
    return static_cast<const at::SparseCsrTensorImpl&>(impl).values();
  return t;
}

inline const void* memory_of(const at::Tensor& given) {
  TensorView v;
  const at::Tensor t = with_memory(given);
  return t.defined() && place_of(*t.unsafeGetTensorImpl(), &v) ? v.storage : nullptr;
}

}  // namespace finitude::observe
