// Operators that exchange values with other processes. Nothing may call one that the program does not: the other ranks
// would take it for the next of the program's own, or wait for it in vain.
#pragma once

#include <string_view>

namespace finitude::record {

// name: "namespace::operator". c10d has the calls of torch.distributed, _c10d_functional and c10d_functional (before
// PyTorch 2.3) those that compilers and DTensor call, each with a form for autograd, _dtensor one that moves the
// sharded dimension, symm_mem those over memory shared by GPUs.
inline bool exchanges_values(std::string_view name) {
  for (const std::string_view space : {"c10d::", "_c10d_functional", "c10d_functional", "_dtensor::", "symm_mem::"}) {
    if (name.starts_with(space)) return true;
  }
  return false;
}

// It is carried out by the backend (gloo, NCCL, MPI) and by no other operators of the program's.
inline bool is_backend_call(std::string_view name) { return name.starts_with("c10d::"); }

// It only hands on what another such call writes: _c10d_functional::wait_tensor, or _wrap_tensor_autograd, which puts a
// tensor that is waited for later around it.
inline bool only_waits(std::string_view name) {
  return exchanges_values(name) &&
         (name.find("::wait") != std::string_view::npos || name.find("::_wrap_") != std::string_view::npos);
}

// Its kernel calls the backend's operator, and operators of torch that make what that is given: _c10d_functional and
// _c10d_functional_autograd.
inline bool wraps_backend_call(std::string_view name) {
  return name.starts_with("_c10d_functional") && !only_waits(name);
}

// Of an operator that is not PyTorch's nobody knows it.
inline bool may_exchange_values(std::string_view name) { return exchanges_values(name) || !name.starts_with("aten::"); }

}  // namespace finitude::record
