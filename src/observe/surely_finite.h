// Calls whose result must be finite, by the ranges of what they read.
#pragma once

#include <string_view>
#include <vector>

#include "record/event_sink.h"

namespace finitude::observe {

// True only where interval arithmetic proves it of an element-wise call: every operand is known and finite, and no
// product, quotient or sum can come near the largest number of the coarsest format involved. False says nothing. `op`:
// the name without overload; what it overwrites unread is no operand ("out").
bool surely_finite(std::string_view op, const std::vector<record::SeenTensor>& inputs,
                   const std::vector<record::ScalarUse>& scalars);

}  // namespace finitude::observe
