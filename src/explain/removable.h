// 0 / 0 that may have a limit: sin(v) / v.
#pragma once

#include <optional>

#include "explain/evidence.h"

namespace finitude::explain {

// The zeros from which both operands of a division are computed, to be replaced by small numbers
// (StepLab::beside); nothing where the operands have no such zeros in common.
std::optional<replay::Beside> common_zeros(const Scene& scene, record::OpId division,
                                           const record::TensorUse& numerator, const record::TensorUse& denominator);

}  // namespace finitude::explain
