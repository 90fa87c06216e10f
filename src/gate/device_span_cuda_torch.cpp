// A tensor on a device as the library wants it: the stretch of memory that it is, and the streams that work on it by
// their handles.
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdint>
#include <stdexcept>

#include "gate/device_library_posix.h"
#include "gate/gate_parts_torch.h"
#include "observe/tensor_view_torch.h"

namespace finitude::bindings {
namespace {

c10::Stream torch_stream(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

// c10::Stream has native_handle() since torch 2.12. Before, a C function of libtorch_cuda gives the handle, but only of
// the current stream. It is looked up at run time, since this module is built against a torch without CUDA. Throws
// where there is no handle: to scan on another stream would read gradients that are not complete.
template <typename Stream>
void* native_handle_of(const Stream& stream) {
  if constexpr (requires { stream.native_handle(); }) {
    return stream.native_handle();
  } else {
    using Current = int (*)(std::int32_t, void**);
    static const auto current = reinterpret_cast<Current>(find_symbol("aoti_torch_get_current_cuda_stream"));
    void* handle = nullptr;
    if (stream != torch_stream(stream.device()) || current == nullptr || current(stream.device_index(), &handle) != 0) {
      throw std::runtime_error("no handle of this stream");
    }
    return handle;
  }
}

}  // namespace

void* handle_of(const c10::Stream& stream) { return native_handle_of(stream); }

void* current_stream(c10::Device device) {
  if (device.is_cpu()) return nullptr;
  return handle_of(torch_stream(device));
}

// One dense stretch of memory that holds exactly the tensor's elements, in any order; counts and maxima do not depend
// on it. False for wrapped and overlapping tensors and for those with gaps, where a scan would read memory of others.
bool stretch_of(const at::Tensor& gradient, finitude_cuda_tensor* tensor) {
  if (gradient.is_sparse()) {  // duplicates are not summed first, which would wait for the device: Inf - Inf stays bad
    return stretch_of(gradient._values(), tensor);
  }
  const c10::TensorImpl& impl = *gradient.unsafeGetTensorImpl();
  if (impl.layout() != c10::kStrided || impl.is_python_dispatch() || !impl.has_storage()) return false;
  if (impl.key_set().has_any(
          c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::FuncTorchBatched,
                               c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::BatchedNestedTensor}))) {
    return false;
  }
  *tensor = {};
  tensor->dtype = static_cast<std::uint32_t>(observe::dtype_of(impl.dtype()));
  std::int64_t stretch = impl.numel();
  if (!impl.is_contiguous() && !impl.is_non_overlapping_and_dense()) {
    // Expanded dimensions (stride 0) repeat elements: the tensor is dense if its distinct elements fill the span.
    std::int64_t distinct = 1;
    stretch = 1;
    for (std::int64_t d = 0; d < impl.dim(); ++d) {
      const std::int64_t size = impl.sizes()[static_cast<std::size_t>(d)],
                         stride = impl.strides()[static_cast<std::size_t>(d)];
      if (stride != 0) distinct *= size;
      stretch += (size - 1) * stride;
    }
    if (impl.numel() == 0)
      stretch = 0;
    else if (distinct != stretch)
      return false;
  }
  if (stretch == 0) return true;
  const auto* base = static_cast<const char*>(impl.unsafe_storage().unsafeGetStorageImpl()->data_ptr().get());
  if (base == nullptr) return false;
  tensor->data = base + impl.storage_offset() * static_cast<std::int64_t>(impl.itemsize());
  tensor->numel = static_cast<std::uint64_t>(stretch);
  return true;
}

}  // namespace finitude::bindings
