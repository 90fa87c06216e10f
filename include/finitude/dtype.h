// The floating-point formats that Finitude scans, with their limits.
//
// All functions here are pure lookups in a constant table. They may be called from any thread, never block, never throw
// and touch no GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "finitude/export.h"

namespace finitude::sense {

// Element type of a tensor. Names follow PyTorch's (torch.float8_e4m3fn is kFloat8E4M3FN). A complex element is two
// reals of the format with half its size. The numeric values are part of the C interface (finitude_cuda_tensor.dtype).
enum class DType : std::uint8_t {
  kFloat64,
  kFloat32,
  kFloat16,
  kBFloat16,
  // Complex types are scanned as 2 * numel reals: float64, float32 and float16.
  kComplex128,
  kComplex64,
  kComplex32,
  // E4M3FN has no Inf. The FNUZ formats have neither Inf nor -0; their one NaN is the bit pattern of -0.
  kFloat8E4M3FN,
  kFloat8E4M3FNUZ,
  kFloat8E5M2,
  kFloat8E5M2FNUZ,
  // Formats that hold no NaN or Inf (integers, bool) and formats that are skipped on purpose (quantised, packed
  // sub-byte). A scan of such memory reads nothing and counts nothing.
  kOther,
};

// Properties of one format. For kOther the name is "other" and all numbers are 0.
struct DTypeInfo {
  // As in torch, without "torch.": "float32". Points to static memory.
  std::string_view name;
  // Size of one real, in bytes: 4 for both float32 and complex64.
  std::size_t size_bytes;
  // 2 for complex formats, 1 for the others. size_bytes * reals_per_element is the size of an element.
  int reals_per_element;
  // Largest finite magnitude: 65504 for float16.
  double max_finite;
  // Smallest positive normal number. Smaller magnitudes other than 0 are subnormal.
  double min_normal;
  // Distance from 1 to the next larger number.
  double epsilon;
};

// The properties of `dtype`. The reference stays valid for the life of the process. A value outside the enumeration is
// treated as kOther.
FINITUDE_API const DTypeInfo& info(DType dtype) noexcept;
// True if a real takes one or two bytes: float16, bfloat16, complex32 and the float8 formats.
FINITUDE_API bool is_half(DType dtype) noexcept;

}  // namespace finitude::sense
