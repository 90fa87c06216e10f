// When are infinities there on purpose?
#pragma once

#include <span>

#include "locate/dataflow.h"
#include "record/trace.h"

namespace finitude::locate {

// True where the non-finite values of a tensor that came from outside look put there on purpose.
bool is_mask_like(const sense::Health& health, record::Origin origin) noexcept;

// True where `out` holds more bad elements than those that `op` read (`sources`) can have become by
// broadcasting.
bool grew(const record::Op& op, std::span<const Source> sources, const record::TensorUse& out);

}  // namespace finitude::locate
