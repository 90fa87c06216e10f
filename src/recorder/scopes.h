// The places that the program has named itself, as this thread is inside of them.
#pragma once

#include <span>

#include "finitude/scope.h"

namespace finitude::recorder {

// Outermost first. Valid until this thread enters or leaves a scope.
std::span<const Scope::Site* const> open_scopes() noexcept;

}  // namespace finitude::recorder
