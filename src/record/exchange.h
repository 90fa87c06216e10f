// Operators that exchange values with other processes. Nothing may call one that the program does not: the other ranks
// would take it for the next of the program's own, or wait for it in vain.
#pragma once

#include <string_view>

namespace finitude::record {

// name: "namespace::operator". c10d has the calls of torch.distributed, _c10d_functional and c10d_functional (before
// PyTorch 2.3) those that compilers see, each with a form for autograd, symm_mem those over memory shared by GPUs.
inline bool exchanges_values(std::string_view name) {
  for (const std::string_view space : {"c10d::", "_c10d_functional", "c10d_functional", "symm_mem::"}) {
    if (name.starts_with(space)) return true;
  }
  return false;
}

// Of an operator that is not PyTorch's nobody knows it.
inline bool may_exchange_values(std::string_view name) { return exchanges_values(name) || !name.starts_with("aten::"); }

}  // namespace finitude::record
