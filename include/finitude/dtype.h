// The number formats we understand, with their limits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "finitude/export.h"

namespace finitude::sense {

// Names follow PyTorch's. kOther covers every format that holds no NaN or Inf (integers, bool)
// and the formats we skip knowingly (quantised, packed sub-byte): scan() counts nothing in them.
enum class DType : std::uint8_t {
  kFloat64,
  kFloat32,
  kFloat16,
  kBFloat16,
  kComplex128,
  kComplex64,
  kComplex32,  // scanned as 2 * numel reals
  kFloat8E4M3FN,
  kFloat8E4M3FNUZ,
  kFloat8E5M2,
  kFloat8E5M2FNUZ,
  kOther,
};

struct DTypeInfo {
  std::string_view name;   // "float32"
  std::size_t size_bytes;  // of one real element (half of a complex one); 0 for kOther
  int reals_per_element;   // 2 for complex, 1 for the rest, 0 for kOther
  double max_finite;       // largest finite magnitude, e.g. 65504 for float16; 0 for kOther
  double min_normal;       // smallest positive normal magnitude
  double epsilon;          // distance from 1 to the next larger value
};

FINITUDE_API const DTypeInfo& info(DType dtype) noexcept;
FINITUDE_API bool is_half(DType dtype) noexcept;  // float16, bfloat16, complex32 and the float8 formats

}  // namespace finitude::sense
