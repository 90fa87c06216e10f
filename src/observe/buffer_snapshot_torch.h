// Copies of a model's buffers as they were when a step began.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace finitude::observe {

// Copies of the watched buffers. `watch` keeps weak references only. Those on a device are copied there, in the order
// of its current stream: nothing waits. Not while that is captured into a graph.
struct BufferSnapshot {
  // Adds those that are not watched yet, with a copy of what they hold now.
  void watch(const std::vector<at::Tensor>& buffers);
  void take() noexcept;
  void restore() noexcept;
  // A buffer holds NaN now and held none when the copy was taken. Of those on a device nothing is reported: that would
  // wait.
  bool turned_nan() const noexcept;
  // Has a buffer been written since, by what counts its writes (the kernels of batch norm do not)? Of those on a device
  // nothing is reported.
  bool written_since() const noexcept;
  // Do all buffers hold what was copied? Of those on a device nothing is reported.
  bool is_current() const noexcept;
  // Are some of them on a device?
  bool is_elsewhere() const noexcept { return !on_devices_.empty(); }
  // Where a watched buffer lies in `memory`, its copy goes into `content`, which holds that memory from `begin` on.
  void put_into(const c10::StorageImpl& memory, std::int64_t begin, std::string* content) const;
  // Those that are still there.
  std::vector<at::Tensor> watched() const;
  std::size_t size_bytes() const noexcept { return bytes_.size(); }

 private:
  void copy_there(bool back) noexcept;

  struct Item {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    std::size_t offset, size_bytes;
    std::uint32_t version;
  };
  // A copy of a snapshot has copies of its own.
  struct There {
    There(const at::Tensor& of, at::Tensor made) : tensor(of.getIntrusivePtr()), copy(std::move(made)) {}
    There(const There& other);
    There& operator=(const There& other);
    There(There&&) = default;
    There& operator=(There&&) = default;
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    at::Tensor copy;
  };
  std::vector<There> on_devices_;
  std::vector<Item> items_;
  std::vector<char> bytes_;
};

}  // namespace finitude::observe
