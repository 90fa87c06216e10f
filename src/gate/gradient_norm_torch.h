// The 2-norm of all gradients of an optimizer, from the looks that the gate has taken at them.
#pragma once

#include <cmath>

#include "gate/state_torch.h"

namespace finitude::bindings {

// Negative: one of them was not read (on a GPU), or none has a gradient. The norms of the parts are scaled by the
// largest one, so that it overflows only where float64 cannot hold it.
inline double norm_of_marks(const OptimizerEntry& entry) noexcept {
  double largest = -1;
  for (const GradMark& mark : entry.marks) {
    if (mark.grad == nullptr) continue;
    if (!(mark.norm >= 0)) return -1;
    if (mark.norm > largest) largest = mark.norm;
  }
  if (!(largest > 0) || std::isinf(largest)) return largest;
  double squares = 0;
  for (const GradMark& mark : entry.marks) {
    if (mark.grad == nullptr) continue;
    const double part = mark.norm / largest;
    squares += part * part;
  }
  return largest * std::sqrt(squares);
}

}  // namespace finitude::bindings
