// What is noticed of the distance of gradients to the largest number of their dtype, in bits: that it is nearly used
// up, or will be soon.
//
// One HeadroomWatch for each optimizer. Pure, in a fixed amount of memory, as StepWatch is.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "signal/trend.h"
#include "signal/warning.h"

namespace finitude::signal {

class HeadroomWatch {
 public:
  // A step was applied. gradients: the largest magnitude of each parameter's gradient, in order; negative where it has
  // none. limits: the largest finite number of the dtype of each; 0: not known. largest: of all gradients; narrowest:
  // the least of the limits that are known. Returns the warnings.
  std::vector<Warning> note(std::uint64_t step, double lr, double largest, double narrowest,
                            std::span<const float> gradients, std::span<const double> limits);

 private:
  Window used_;             // logarithms of the share of the limit, of the steps in a row that came near it
  double said_ = 1;         // that was warned of last; positive: none was
  std::uint64_t next_ = 0;  // the step that follows the last one kept
};

}  // namespace finitude::signal
