// Does this thread call operators to write them down, not to compute: under torch.compile, torch.export, make_fx,
// FakeTensorMode?
#pragma once

#include <c10/core/impl/TorchDispatchModeTLS.h>

namespace finitude::observe {

// Modes of a program's own, as a counter of operations, do not count: what is called under them computes.
inline bool is_traced() {
  using c10::impl::TorchDispatchModeKey;
  using Modes = c10::impl::TorchDispatchModeTLS;
  if (!Modes::any_modes_set()) [[likely]]
    return false;
  return Modes::get_mode(TorchDispatchModeKey::FAKE).has_value() ||
         Modes::get_mode(TorchDispatchModeKey::PROXY).has_value() ||
         Modes::get_mode(TorchDispatchModeKey::FUNCTIONAL).has_value();
}

}  // namespace finitude::observe
