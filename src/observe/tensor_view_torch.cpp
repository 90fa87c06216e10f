#include "observe/tensor_view_torch.h"

#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/TensorWrapper.h>
#include <c10/core/ScalarType.h>

#include <cstring>

#include "base/checksum.h"
#include "observe/concrete_torch.h"
#include "observe/threads_torch.h"

namespace finitude::observe {

sense::DType dtype_of(caffe2::TypeMeta meta) noexcept {
  using sense::DType;
  if (!meta.isScalarType()) return DType::kOther;
  switch (meta.toScalarType()) {
    case c10::ScalarType::Double:
      return DType::kFloat64;
    case c10::ScalarType::Float:
      return DType::kFloat32;
    case c10::ScalarType::Half:
      return DType::kFloat16;
    case c10::ScalarType::BFloat16:
      return DType::kBFloat16;
    case c10::ScalarType::ComplexDouble:
      return DType::kComplex128;
    case c10::ScalarType::ComplexFloat:
      return DType::kComplex64;
    case c10::ScalarType::ComplexHalf:
      return DType::kComplex32;
    case c10::ScalarType::Float8_e4m3fn:
      return DType::kFloat8E4M3FN;
    case c10::ScalarType::Float8_e4m3fnuz:
      return DType::kFloat8E4M3FNUZ;
    case c10::ScalarType::Float8_e5m2:
      return DType::kFloat8E5M2;
    case c10::ScalarType::Float8_e5m2fnuz:
      return DType::kFloat8E5M2FNUZ;
    default:
      return DType::kOther;
  }
}

namespace {

// What torch.func's grad and vmap put around a tensor, taken off: the values are those of the innermost one.
const c10::TensorImpl& unwrapped(const c10::TensorImpl& impl, bool* batched) noexcept {
  const c10::TensorImpl* at = &impl;
  for (int depth = 0; depth < 16; ++depth) {
    const at::Tensor* inner = nullptr;
    if (at->key_set().has(c10::DispatchKey::FuncTorchGradWrapper)) {
      inner = &static_cast<const at::functorch::TensorWrapper*>(at)->value();
    } else if (at->key_set().has(c10::DispatchKey::FuncTorchBatched)) {
      inner = &static_cast<const at::functorch::BatchedTensorImpl*>(at)->value();
      *batched = true;
    }
    if (inner == nullptr || !inner->defined()) break;
    at = inner->unsafeGetTensorImpl();
  }
  return *at;
}

// Is it a strided tensor with memory of its own?
bool is_plain(const c10::TensorImpl& impl) noexcept {
  if (!is_concrete(impl) || impl.layout() != c10::kStrided) return false;
  const c10::DispatchKeySet keys = impl.key_set();
  return !keys.has(c10::DispatchKey::QuantizedCPU) && !keys.has(c10::DispatchKey::NestedTensorCPU);
}

// The same of a device whose memory the host may not read.
bool is_plain_elsewhere(const c10::TensorImpl& impl) noexcept {
  const c10::DispatchKeySet keys = impl.key_set();
  return is_plain(impl) && (impl.is_cuda() || impl.is_privateuseone()) && !keys.has(c10::DispatchKey::QuantizedCUDA) &&
         !keys.has(c10::DispatchKey::QuantizedPrivateUse1) && !keys.has(c10::DispatchKey::NestedTensorCUDA) &&
         !keys.has(c10::DispatchKey::NestedTensorPrivateUse1);
}

// A tensor may refuse to say its size or its memory: nothing of that may reach the operator that is under way.
bool view_anywhere(const c10::TensorImpl& outer, TensorView* view, bool elsewhere) noexcept try {
  view->batched = view->on_device = false;
  const bool ordinary = is_ordinary(outer);
  const c10::TensorImpl& impl = ordinary ? outer : unwrapped(outer, &view->batched);
  if (!ordinary) {
    view->on_device = elsewhere && is_plain_elsewhere(impl);
    if (!view->on_device && !(is_plain(impl) && impl.is_cpu())) return false;
    if (!impl.has_storage()) return false;
  }
  c10::StorageImpl* storage = impl.unsafe_storage().unsafeGetStorageImpl();
  if (storage == nullptr) return false;
  const std::int64_t numel = impl.numel();
  const auto* base = static_cast<const char*>(storage->data_ptr().get());
  if (base == nullptr && numel != 0) return false;
  const auto item = static_cast<std::int64_t>(impl.itemsize());
  std::int64_t last = 0;  // elements from the first to the last one of the view
  view->sizes = impl.sizes();
  view->strides = impl.strides();
  for (std::size_t d = 0; d < view->sizes.size(); ++d) last += (view->sizes[d] - 1) * view->strides[d];
  view->storage = storage;
  view->begin = impl.storage_offset() * item;
  view->end = numel == 0 ? view->begin : view->begin + (last + 1) * item;
  if (view->end > static_cast<std::int64_t>(storage->nbytes())) return false;
  view->data = base == nullptr ? nullptr : base + view->begin;
  view->dtype = dtype_of(impl.dtype());
  view->numel = numel;
  view->ordinary = ordinary;
  view->contiguous = impl.is_contiguous();
  return true;
} catch (...) {
  return false;
}

}  // namespace

bool view_of(const c10::TensorImpl& impl, TensorView* view) noexcept { return view_anywhere(impl, view, false); }

bool place_of(const c10::TensorImpl& impl, TensorView* view) noexcept { return view_anywhere(impl, view, true); }

sense::Quick quick(const TensorView& v) noexcept {
  if (v.contiguous) return sense::quick_scan(v.data, static_cast<std::size_t>(v.numel), v.dtype, torch_threads());
  return sense::quick_scan_strided(v.data, v.sizes.data(), v.strides.data(), static_cast<int>(v.sizes.size()), v.dtype,
                                   torch_threads());
}

sense::Health full(const TensorView& v) noexcept {
  if (v.contiguous) return sense::full_scan(v.data, static_cast<std::size_t>(v.numel), v.dtype, torch_threads());
  return sense::full_scan_strided(v.data, v.sizes.data(), v.strides.data(), static_cast<int>(v.sizes.size()), v.dtype,
                                  torch_threads());
}

std::uint64_t checksum(const TensorView& v) noexcept {
  const std::int64_t span = v.end - v.begin;
  const std::int64_t item = v.numel == 0 ? 0 : [&] {
    std::int64_t last = 0;
    for (std::size_t d = 0; d < v.sizes.size(); ++d) last += (v.sizes[d] - 1) * v.strides[d];
    return span / (last + 1);
  }();
  std::uint64_t sum = static_cast<std::uint64_t>(v.numel);
  if (v.numel == 0) return sum;
  // Blocks of a fixed number of elements, so that the cut points do not depend on the strides.
  constexpr std::int64_t kBlock = 4096;
  if (v.contiguous) {
    for (std::int64_t n = 0; n < v.numel; n += kBlock) {
      const std::int64_t part = v.numel - n < kBlock ? v.numel - n : kBlock;
      sum = base::checksum(v.data + n * item, static_cast<std::size_t>(part * item), sum);
    }
    return sum;
  }
  char block[kBlock * 16];
  std::int64_t filled = 0;
  const auto ndim = v.sizes.size();
  std::int64_t index[64] = {0};
  if (ndim > 64 || item > 16) return sum;
  for (std::int64_t n = 0; n < v.numel; ++n) {
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < ndim; ++d) offset += index[d] * v.strides[d];
    std::memcpy(block + filled * item, v.data + offset * item, static_cast<std::size_t>(item));
    if (++filled == kBlock) {
      sum = base::checksum(block, static_cast<std::size_t>(filled * item), sum);
      filled = 0;
    }
    for (std::size_t d = ndim; d-- > 0;) {
      if (++index[d] < v.sizes[d]) break;
      index[d] = 0;
    }
  }
  return filled == 0 ? sum : base::checksum(block, static_cast<std::size_t>(filled * item), sum);
}

}  // namespace finitude::observe
