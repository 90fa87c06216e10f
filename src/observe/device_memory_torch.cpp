#include "observe/device_memory_torch.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/record_function.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <cstring>

#include "capture/tape.h"

namespace finitude::observe {
namespace {

thread_local int own_work = 0;

struct OwnWork {
  OwnWork() { ++own_work; }
  ~OwnWork() { --own_work; }
  OwnWork(const OwnWork&) = delete;
  OwnWork& operator=(const OwnWork&) = delete;
};

// Whatever the program is inside of (autocast, a dispatch mode, torch.func): a copy is a copy.
struct PlainDispatch {
  const OwnWork own;
  const at::DisableRecordFunctionGuard unobserved;
  const c10::impl::ForceDispatchKeyGuard plain{
      c10::default_included_set, c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView};
  const at::NoGradGuard no_grad;
};

}  // namespace

bool at_own_work() noexcept { return own_work != 0; }

bool is_recorded_device(const c10::Device& device) noexcept {
  return device.is_cpu() || device.is_cuda() || device.is_privateuseone();
}

std::string device_name(const c10::Device& device) {
  std::string name = device.str();
  if (capture::is_device_name(name)) return name;
  return "privateuseone" + (device.has_index() ? ":" + std::to_string(device.index()) : "");
}

namespace {

std::atomic<bool (*)(const c10::Device&)> is_capturing = nullptr;

// Then a wait would end the program's capture.
bool captures(const c10::Device& device) {
  const auto ask = is_capturing.load(std::memory_order_relaxed);
  return ask != nullptr && ask(device);
}

// Bytes of a device's memory into the host's.
void copy_off(c10::Storage storage, std::int64_t begin, std::int64_t end, void* to) {
  const PlainDispatch plain;
  const c10::Device device = storage.device();
  at::Tensor there = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::computeDispatchKey(at::kByte, c10::kStrided, device)),
      c10::scalarTypeToTypeMeta(at::kByte));
  there.unsafeGetTensorImpl()->set_sizes_contiguous({end - begin});
  there.unsafeGetTensorImpl()->set_storage_offset(begin);
  at::from_blob(to, {end - begin}, at::TensorOptions(at::kByte)).copy_(there);
}

}  // namespace

bool copy_bytes(const c10::intrusive_ptr<c10::StorageImpl>& storage, std::int64_t begin, std::int64_t end,
                std::string* bytes) noexcept try {
  bytes->clear();
  // The caller that set it another size since it was seen (UntypedStorage.resize_) called no operator.
  if (begin < 0 || end < begin || static_cast<std::size_t>(end) > storage->nbytes()) return false;
  const auto size = static_cast<std::size_t>(end - begin);
  const auto* data = static_cast<const char*>(storage->data_ptr().get());
  if (data == nullptr || size == 0) return true;
  if (storage->device().is_cpu()) {
    bytes->assign(data + begin, size);
    return true;
  }
  bytes->resize(size);
  copy_off(c10::Storage(storage), begin, end, bytes->data());
  return true;
} catch (...) {
  bytes->clear();
  return false;
}

bool copy_to(const TensorView& view, void* to) noexcept try {
  const std::int64_t size = view.end - view.begin;
  if (size == 0) return true;
  if (!view.on_device) {
    std::memcpy(to, view.data, static_cast<std::size_t>(size));
    return true;
  }
  if (captures(view.storage->device())) return false;
  copy_off(c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(view.storage)), view.begin, view.end, to);
  return true;
} catch (...) {
  return false;
}

bool HostBytes::read(TensorView* view) noexcept try {
  if (!view->on_device) return true;
  bytes_.resize(static_cast<std::size_t>(view->end - view->begin));
  if (!copy_to(*view, bytes_.data())) return false;
  view->data = bytes_.data();
  return true;
} catch (...) {  // no memory
  return false;
}

at::Tensor copied_there(const at::Tensor& tensor) noexcept try {
  if (!tensor.defined() || captures(tensor.device())) return {};
  const PlainDispatch plain;
  return tensor.clone();
} catch (...) {
  return {};
}

void copy_all(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) noexcept try {
  if (to.empty() || captures(to.front().device())) return;
  const PlainDispatch plain;
  at::_foreach_copy_(to, from);
} catch (...) {  // they stay what they were
}

at::Tensor copied_off(const at::Tensor& tensor) noexcept {
  if (!tensor.defined() || captures(tensor.device())) return {};
  try {
    const PlainDispatch plain;
    at::Tensor copy = at::empty_like(tensor, tensor.options().device(at::kCPU).pinned_memory(true));
    copy.copy_(tensor, true);
    return copy;
  } catch (...) {  // no pinned memory
    return copied_there(tensor);
  }
}

bool all_finite(const at::Tensor& tensor) noexcept {
  TensorView v;
  if (!tensor.defined() || !place_of(*tensor.unsafeGetTensorImpl(), &v)) return true;
  if (!v.on_device) return !quick(v).bad;
  if (v.dtype == sense::DType::kOther || v.numel == 0 || captures(tensor.device())) return true;
  if (!v.batched) {
    try {
      const PlainDispatch plain;
      const auto [least, most] = at::aminmax(tensor.is_complex() ? at::view_as_real(tensor) : tensor);  // a NaN is both
      return at::isfinite(at::stack({least, most})).all().item<bool>();
    } catch (...) {  // a dtype that the device's kernel does not know
    }
  }
  HostBytes host;
  return !host.read(&v) || !quick(v).bad;
}

void ask_whether_capturing(bool (*ask)(const c10::Device&)) noexcept { is_capturing = ask; }

at::Tensor on_host(const at::Tensor& tensor) noexcept try {
  if (!tensor.defined() || tensor.device().is_cpu()) return tensor;
  const PlainDispatch plain;
  return tensor.to(at::kCPU);
} catch (...) {
  return {};
}

void wait_for_device(const c10::Device& device) noexcept try {
  const OwnWork own;
  if (!device.is_cpu() && !captures(device))
    c10::impl::VirtualGuardImpl(device.type())
        .synchronizeDevice(device.has_index() ? device.index() : c10::DeviceIndex{0});
} catch (...) {
}

}  // namespace finitude::observe
