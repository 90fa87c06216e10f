// Tensors of which memory and sizes can be asked for: no wrapper, and nothing that represents a tensor while code is
// traced.
//
// Others may answer such questions with Python code, or with an exception. Both functions read one field and call
// nothing.
#pragma once

#include <c10/core/TensorImpl.h>

namespace finitude::observe {

// Nearly all that is ever looked at: a dense tensor of the CPU, wrapped in nothing.
inline bool is_ordinary(const c10::TensorImpl& impl) noexcept {
  using c10::DispatchKey;
  constexpr c10::DispatchKeySet kOrdinary(
      {DispatchKey::CPU, DispatchKey::ADInplaceOrView, DispatchKey::AutogradCPU, DispatchKey::AutocastCPU});
  return impl.key_set() == kOrdinary;
}

// False for a wrapper, for a Python subclass that dispatches, and for what is fake, functional or meta.
inline bool is_concrete(const c10::TensorImpl& impl) noexcept {
  using c10::DispatchKey;
  constexpr c10::DispatchKeySet kOthers(
      {DispatchKey::Python, DispatchKey::PythonTLSSnapshot, DispatchKey::Functionalize, DispatchKey::ZeroTensor,
       DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchGradWrapper, DispatchKey::BatchedNestedTensor});
  const c10::DispatchKeySet keys = impl.key_set();
  return !keys.has_any(kOthers) && !keys.has_backend(c10::BackendComponent::MetaBit);
}

}  // namespace finitude::observe
