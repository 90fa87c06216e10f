// The full scan's kernels without their sums of squares: what those cost.
#pragma once

#include <cstddef>

#include "finitude/dtype.h"
#include "sense/kernels.h"

namespace finitude::bench {

// For the best instruction set of this machine; null if another one is in use, or "scalar" is all there is.
// `dtype`: one of kDTypes.
sense::FullKernel unsquared_kernel(sense::DType dtype);

}  // namespace finitude::bench
