#include "replay/tape_storage_torch.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/ScalarType.h>
#include <c10/core/TensorOptions.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace finitude::replay {
namespace {

constexpr std::size_t kAlignment = 64;  // of torch's allocator

at::DataPtr memory(std::size_t size_bytes, std::size_t misaligned) {
  if (misaligned == 0) return c10::GetCPUAllocator()->allocate(size_bytes);
  TORCH_CHECK(misaligned < kAlignment, "the tape wants a misalignment of ", misaligned);
  auto* whole = new at::DataPtr(c10::GetCPUAllocator()->allocate(size_bytes + kAlignment));
  return {static_cast<char*>(whole->get()) + misaligned, whole, [](void* w) { delete static_cast<at::DataPtr*>(w); },
          at::Device(at::kCPU)};
}

}  // namespace

c10::Storage new_storage(std::size_t size_bytes, std::size_t misaligned, const char* content) {
  c10::Storage storage(
      c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), static_cast<std::int64_t>(size_bytes),
                                            memory(size_bytes, misaligned), c10::GetCPUAllocator(), true));
  if (size_bytes == 0) return storage;
  if (content != nullptr) {
    std::memcpy(storage.mutable_data(), content, size_bytes);
  } else {
    std::memset(storage.mutable_data(), 0, size_bytes);
  }
  return storage;
}

at::Tensor bytes_in(const c10::Storage& storage) {
  at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::computeDispatchKey(at::kByte, c10::kStrided, storage.device())),
      c10::scalarTypeToTypeMeta(at::kByte));
  t.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<std::int64_t>(storage.nbytes())});
  return t;
}

at::Tensor bytes_at(const char* content, std::size_t size_bytes) {
  return at::from_blob(const_cast<char*>(content), {static_cast<std::int64_t>(size_bytes)},
                       at::TensorOptions(at::kByte));
}

c10::Storage new_storage_on(c10::Device device, std::size_t size_bytes, std::size_t misaligned, const char* content) {
  if (device.is_cpu()) return new_storage(size_bytes, misaligned, content);
  const at::TensorOptions options = at::TensorOptions(at::kByte).device(device);
  const auto size = static_cast<std::int64_t>(size_bytes);
  if (content == nullptr) return at::zeros({size}, options).storage();
  at::Tensor t = at::empty({size}, options);
  t.copy_(bytes_at(content, size_bytes));
  return t.storage();
}

void check_inside(const capture::TensorRef& ref, std::size_t item, std::size_t storage_bytes) {
  TORCH_CHECK(item != 0, "the tape has a tensor of an unknown dtype");
  TORCH_CHECK(ref.sizes.size() == ref.strides.size(), "the tape has a tensor without strides");
  std::int64_t numel = 1, last = ref.offset;
  for (std::size_t d = 0; d < ref.sizes.size(); ++d) {
    std::int64_t reach = 0;
    TORCH_CHECK(ref.sizes[d] >= 0 && ref.strides[d] >= 0 && !__builtin_mul_overflow(numel, ref.sizes[d], &numel) &&
                    !__builtin_mul_overflow(std::max<std::int64_t>(ref.sizes[d] - 1, 0), ref.strides[d], &reach) &&
                    !__builtin_add_overflow(last, reach, &last),
                "the tape has a tensor of impossible size");
  }
  if (numel == 0) return;
  std::int64_t end = 0;
  TORCH_CHECK(ref.offset >= 0 && !__builtin_add_overflow(last, std::int64_t{1}, &last) &&
                  !__builtin_mul_overflow(last, static_cast<std::int64_t>(item), &end) &&
                  static_cast<std::uint64_t>(end) <= storage_bytes,
              "the tape has a tensor outside its memory");
}

}  // namespace finitude::replay
