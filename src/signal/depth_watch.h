// What is noticed of gradients over the depth of a model: that they vanish or explode from one weight matrix to the
// next, in the order of the parameters.
//
// One DepthWatch for each optimizer. Pure, as StepWatch is; of the steps it keeps how many there were in a row.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "signal/warning.h"

namespace finitude::signal {

// The course of the magnitudes over the matrices, as a line through their decimal logarithms.
struct DepthProfile {
  std::uint32_t first = 0, last = 0, layers = 0;  // indices of parameters; how many matrices have a gradient
  double decades = 0;  // by which the line rises from the first to the last; negative: it falls
};

// gradients: the largest magnitude of each parameter's gradient, in order; 0 or negative: it does not count.
// is_matrix: of each, has it two dimensions or more. None: there are too few, or a line does not describe them.
std::optional<DepthProfile> depth_profile(std::span<const float> gradients, std::span<const std::uint8_t> is_matrix);

class DepthWatch {
 public:
  // A step was applied. Returns the warnings.
  std::vector<Warning> note(std::uint64_t step, double lr, std::span<const float> gradients,
                            std::span<const std::uint8_t> is_matrix);

 private:
  std::uint64_t steps_ = 0;
  std::uint64_t since_[2] = {};  // [falling]
  std::uint32_t looks_[2] = {};  // in a row
  double said_[2] = {};          // decades; 0: nothing was
};

}  // namespace finitude::signal
