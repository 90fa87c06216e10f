// A tensor as memory: where it lies, what format it has, whether we may read it. Calls no operator.
#pragma once

#include <c10/core/TensorImpl.h>

#include <cstdint>

#include "finitude/scan.h"

namespace finitude::observe {

struct TensorView {
  const char* data = nullptr;  // first element of the view; where on_device an address of the device's
  c10::StorageImpl* storage = nullptr;
  std::int64_t begin = 0, end = 0;  // bytes of the storage that the view spans
  sense::DType dtype = sense::DType::kOther;
  c10::IntArrayRef sizes, strides;
  std::int64_t numel = 0;
  bool contiguous = false;
  bool batched = false;    // vmap hides a dimension of it from the caller that calls an op
  bool on_device = false;  // in memory that the host cannot read as it is
  bool ordinary = false;   // wrapped in nothing, conjugated or negated by no flag
};

// By value: toScalarType is not const in every supported torch.
sense::DType dtype_of(caffe2::TypeMeta meta) noexcept;

// False where there is no memory of our kind to read: undefined, not on the CPU, meta, fake, sparse, quantised, nested,
// a Python subclass with its own dispatch, or storage that is not allocated. A torch.func wrapper shows what it wraps.
// Integer tensors are readable (dtype kOther). The view borrows from `impl`: valid as long as the tensor is.
bool view_of(const c10::TensorImpl& impl, TensorView* view) noexcept;
// The same, and also where the memory is that of a device (CUDA, PrivateUse1): on_device is set, and HostBytes has the
// values.
bool place_of(const c10::TensorImpl& impl, TensorView* view) noexcept;

sense::Quick quick(const TensorView& view) noexcept;
sense::Health full(const TensorView& view) noexcept;

// Position-dependent 64-bit checksum of the values in row-major order (two tensors with equal values agree whatever
// their strides).
std::uint64_t checksum(const TensorView& view) noexcept;

}  // namespace finitude::observe
