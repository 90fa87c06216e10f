#include "observe/buffer_snapshot_torch.h"

#include <algorithm>
#include <cstring>

#include "observe/device_memory_torch.h"
#include "observe/tensor_view_torch.h"

namespace finitude::observe {

BufferSnapshot::There::There(const There& other) : tensor(other.tensor), copy(copied_there(other.copy)) {}

BufferSnapshot::There& BufferSnapshot::There::operator=(const There& other) {
  tensor = other.tensor;
  copy = copied_there(other.copy);
  return *this;
}

void BufferSnapshot::watch(const std::vector<at::Tensor>& buffers) {
  std::erase_if(items_, [](const Item& item) { return item.tensor.expired(); });
  std::erase_if(on_devices_, [](const There& one) { return one.tensor.expired(); });
  std::size_t offset = 0;
  for (Item& item : items_) {
    std::memmove(bytes_.data() + offset, bytes_.data() + item.offset, item.size_bytes);
    item.offset = offset;
    offset += item.size_bytes;
  }
  for (const at::Tensor& t : buffers) {
    TensorView v;
    if (!t.defined() || !place_of(*t.unsafeGetTensorImpl(), &v)) continue;
    if (v.on_device) {
      const c10::weak_intrusive_ptr<c10::TensorImpl> there(t.getIntrusivePtr());
      const bool is_known =
          std::any_of(on_devices_.begin(), on_devices_.end(), [&](const There& one) { return one.tensor == there; });
      if (at::Tensor copy = is_known ? at::Tensor() : copied_there(t); copy.defined())
        on_devices_.emplace_back(t, std::move(copy));
      continue;
    }
    if (!v.contiguous) continue;
    const c10::weak_intrusive_ptr<c10::TensorImpl> tensor(t.getIntrusivePtr());
    const auto size_bytes = static_cast<std::size_t>(v.end - v.begin);
    if (std::any_of(items_.begin(), items_.end(), [&](const Item& item) { return item.tensor == tensor; })) continue;
    bytes_.resize(offset + size_bytes);
    std::memcpy(bytes_.data() + offset, v.data, size_bytes);
    items_.push_back({tensor, offset, size_bytes, ~0u});
    offset += size_bytes;
  }
}

void BufferSnapshot::take() noexcept {
  // Batch norm's kernels write running statistics without a version bump, so small buffers are always copied.
  constexpr std::size_t kAlways = 64 * 1024;
  for (Item& item : items_) {
    const auto tensor = item.tensor.lock();
    TensorView v;
    if (!tensor || !view_of(*tensor, &v) || static_cast<std::size_t>(v.end - v.begin) != item.size_bytes) continue;
    const std::uint32_t version = tensor->is_inference() ? ~0u : tensor->version_counter().current_version();
    if (item.size_bytes > kAlways && version == item.version) continue;
    item.version = version;
    std::memcpy(bytes_.data() + item.offset, v.data, item.size_bytes);
  }
  copy_there(false);
}

void BufferSnapshot::copy_there(bool back) noexcept {
  if (on_devices_.empty()) return;
  std::vector<at::Tensor> buffers, copies;
  for (const There& one : on_devices_) {
    auto tensor = one.tensor.lock();
    if (!tensor || !one.copy.defined()) continue;
    at::Tensor buffer(std::move(tensor));
    if (buffer.sizes() != one.copy.sizes() || buffer.scalar_type() != one.copy.scalar_type() ||
        buffer.device() != one.copy.device())
      continue;
    buffers.push_back(std::move(buffer));
    copies.push_back(one.copy);
  }
  if (back)
    copy_all(buffers, copies);
  else
    copy_all(copies, buffers);
}

bool BufferSnapshot::turned_nan() const noexcept {
  for (const Item& item : items_) {
    const auto tensor = item.tensor.lock();
    TensorView v;
    if (!tensor || !view_of(*tensor, &v) || static_cast<std::size_t>(v.end - v.begin) != item.size_bytes) continue;
    if (!quick(v).bad || full(v).nan == 0) continue;
    if (sense::full_scan(bytes_.data() + item.offset, static_cast<std::size_t>(v.numel), v.dtype).nan == 0) return true;
  }
  return false;
}

bool BufferSnapshot::written_since() const noexcept {
  return std::any_of(items_.begin(), items_.end(), [](const Item& item) {
    const auto tensor = item.tensor.lock();
    return tensor && !tensor->is_inference() && tensor->version_counter().current_version() != item.version;
  });
}

bool BufferSnapshot::is_current() const noexcept {
  return std::all_of(items_.begin(), items_.end(), [&](const Item& item) {
    const auto tensor = item.tensor.lock();
    TensorView v;
    if (!tensor || !view_of(*tensor, &v) || static_cast<std::size_t>(v.end - v.begin) != item.size_bytes) return true;
    return std::memcmp(v.data, bytes_.data() + item.offset, item.size_bytes) == 0;
  });
}

void BufferSnapshot::restore() noexcept {
  for (Item& item : items_) {
    const auto tensor = item.tensor.lock();
    TensorView v;
    if (!tensor || !view_of(*tensor, &v) || static_cast<std::size_t>(v.end - v.begin) != item.size_bytes) continue;
    std::memcpy(const_cast<char*>(v.data), bytes_.data() + item.offset, item.size_bytes);
  }
  copy_there(true);
}

void BufferSnapshot::put_into(const c10::StorageImpl& memory, std::int64_t begin, std::string* content) const {
  for (const Item& item : items_) {
    const auto tensor = item.tensor.lock();
    TensorView v;
    if (!tensor || !view_of(*tensor, &v) || v.storage != &memory ||
        static_cast<std::size_t>(v.end - v.begin) != item.size_bytes)
      continue;
    const std::int64_t from = std::max(v.begin, begin),
                       to = std::min(v.end, begin + static_cast<std::int64_t>(content->size()));
    if (from < to)
      std::memcpy(content->data() + (from - begin), bytes_.data() + item.offset + (from - v.begin),
                  static_cast<std::size_t>(to - from));
  }
}

std::vector<at::Tensor> BufferSnapshot::watched() const {
  std::vector<at::Tensor> found;
  for (const Item& item : items_) {
    if (auto tensor = item.tensor.lock()) found.emplace_back(std::move(tensor));
  }
  for (const There& one : on_devices_) {
    if (auto tensor = one.tensor.lock()) found.emplace_back(std::move(tensor));
  }
  return found;
}

}  // namespace finitude::observe
