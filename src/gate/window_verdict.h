// What is found of a window when its optimizer is about to step.
#pragma once

#include <cstdint>

namespace finitude::bindings {

struct WindowVerdict {
  bool needs_cold = false;  // something non-finite, or a rare event the Python side must hear of
  double grad_absmax = 0;
  bool is_scaled = false;  // grad_absmax is that of a gradient that no GradScaler had unscaled when it was read
  double lr = 0;           // of the first group; what it was, where there is none
  std::uint32_t bad_gradients = 0;
  std::uint32_t laundered = 0;  // bad after backward, finite now because the script zeroed or replaced them
  bool late = false;            // what the device found will be known later
  bool scaler_skip = false;     // a GradScaler's flag on the device is set, and no loss is bad
  bool unknown = false;         // what lies on a device was not looked at
  std::uint32_t clamped = 0;    // infinite after backward, finite but not zero now
  bool all_zero = false;        // every gradient is exactly zero, and the loss is not
  bool zeroed = false;          // some were finite and not zero after backward, and are zero now
};

}  // namespace finitude::bindings
