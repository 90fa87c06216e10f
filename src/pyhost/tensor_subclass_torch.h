// Tensors of a Python class that holds others and has no memory of its own, as DTensor holds the shard of this rank.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>

#include <string>

namespace finitude::bindings {

namespace detail {
const at::Tensor& inside_of(const at::Tensor& tensor) noexcept;
}

// The tensor whose memory holds the values, on this rank: `tensor` itself unless it is such a wrapper around one tensor
// of floating point numbers, by its class's __tensor_flatten__ (torch.utils._python_dispatch, from torch 2.1 on). It
// lives as long as the wrapper does and is not given another one inside. A value that another rank is still sending is
// waited for. GIL held; no Python error is left or lost. Nearly free for all other tensors.
inline const at::Tensor& local_of(const at::Tensor& tensor) noexcept {
  return tensor.defined() && tensor.unsafeGetTensorImpl()->is_python_dispatch() ? detail::inside_of(tensor) : tensor;
}

// True for a wrapper that cannot be looked into; the first of them is remembered. GIL held.
bool note_unread(const at::Tensor& tensor) noexcept;
// Its class: "module.Name"; "" if there was none.
const std::string& unread_class() noexcept;

}  // namespace finitude::bindings
