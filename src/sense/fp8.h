// float8: 256 codes, so a histogram says everything.
#pragma once

#include <cstddef>

#include "finitude/health.h"
#include "sense/format.h"

namespace finitude::sense {

Health full_scan_fp8(const void* data, std::size_t n, DType dtype) noexcept;

}  // namespace finitude::sense
