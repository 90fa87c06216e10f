#include "observe/device_memory_torch.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "capture/tape.h"

namespace finitude::observe {
namespace {

// Whatever the program is inside of (autocast, a dispatch mode, torch.func): a copy is a copy.
struct PlainDispatch {
  const at::DisableRecordFunctionGuard unobserved;
  const c10::impl::ForceDispatchKeyGuard plain{c10::default_included_set,
                                               c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView};
  const at::NoGradGuard no_grad;
};

}  // namespace

bool is_recorded_device(const c10::Device& device) noexcept {
  return device.is_cpu() || device.is_cuda() || device.is_privateuseone();
}

std::string device_name(const c10::Device& device) {
  std::string name = device.str();
  if (capture::is_device_name(name)) return name;
  return "privateuseone" + (device.has_index() ? ":" + std::to_string(device.index()) : "");
}

bool copy_bytes(const c10::intrusive_ptr<c10::StorageImpl>& storage, std::int64_t begin, std::int64_t end,
                std::string* bytes) noexcept try {
  bytes->clear();
  // Whoever set it another size since it was seen (UntypedStorage.resize_) called no operator.
  if (begin < 0 || end < begin || static_cast<std::size_t>(end) > storage->nbytes()) return false;
  const auto size = static_cast<std::size_t>(end - begin);
  const auto* data = static_cast<const char*>(storage->data_ptr().get());
  if (data == nullptr || size == 0) return true;
  const c10::Device device = storage->device();
  if (device.is_cpu()) {
    bytes->assign(data + begin, size);
    return true;
  }
  const PlainDispatch plain;
  at::Tensor there = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::computeDispatchKey(at::kByte, c10::kStrided, device)),
      c10::scalarTypeToTypeMeta(at::kByte));
  there.unsafeGetTensorImpl()->set_sizes_contiguous({end - begin});
  there.unsafeGetTensorImpl()->set_storage_offset(begin);
  bytes->resize(size);
  at::from_blob(bytes->data(), {end - begin}, at::TensorOptions(at::kByte)).copy_(there);
  return true;
} catch (...) {
  bytes->clear();
  return false;
}

at::Tensor on_host(const at::Tensor& tensor) noexcept try {
  if (!tensor.defined() || tensor.device().is_cpu()) return tensor;
  const PlainDispatch plain;
  return tensor.to(at::kCPU);
} catch (...) {
  return {};
}

void wait_for_device(const c10::Device& device) noexcept try {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.has_index() ? device.index() : c10::DeviceIndex{0});
} catch (...) {
}

}  // namespace finitude::observe
