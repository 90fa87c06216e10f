// Memory that is not the CPU's, as the tape wants it: copied off, in the order of the stream that is current. Only of a
// step that is run again, and of a replay: each of these waits for the device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <string>
#include <vector>

#include "observe/tensor_view_torch.h"

namespace finitude::observe {

// Where values are recorded: the CPU, CUDA, and a backend of the program's own (PrivateUse1).
bool is_recorded_device(const c10::Device& device) noexcept;

// As a tape names it: "cuda:0", or "cuda" where it has no number. A backend of the program's own that was renamed to
// what no tape can name ("my_npu") keeps the name by which every torch knows it.
std::string device_name(const c10::Device& device);

// These bytes of a storage; false where they cannot be had. Calls no operator for memory of the CPU; for other memory
// one copy, which nobody observes.
bool copy_bytes(const c10::intrusive_ptr<c10::StorageImpl>& storage, std::int64_t begin, std::int64_t end,
                std::string* bytes) noexcept;

// The bytes that a view spans, wherever they are, to `to`, which has room for end - begin of them. Nothing is kept of
// the view.
bool copy_to(const TensorView& view, void* to) noexcept;

// What the host reads of a view: memory of the CPU as it is, that of a device as a copy, which lasts as long as this
// does.
class HostBytes {
 public:
  // Sets view->data to what can be read. False: it cannot be had, as while the stream is being captured into a graph.
  bool read(TensorView* view) noexcept;

 private:
  std::string bytes_;
};

// A copy beside a tensor of a device; undefined where it cannot be made. And each of `to` becomes what its like in
// `from` is, tensors of one kind and shape each: all in few launches, in the order of the current streams. Neither
// waits, nor is observed.
at::Tensor copied_there(const at::Tensor& tensor) noexcept;
void copy_all(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) noexcept;

// A copy of a device's tensor in pinned memory of the host, or beside it where there is no such memory. Its values are
// there once the device was waited for; this call does not wait, and is not observed. Undefined where it cannot be
// made.
at::Tensor copied_off(const at::Tensor& tensor) noexcept;

// Are all values of a floating point or complex tensor finite, wherever it is? Of a device's it is asked there, by
// operators that nobody observes, and waited for. True also where it cannot be reported.
bool all_finite(const at::Tensor& tensor) noexcept;

// Is this thread within one of the copies above? What the device reports then is not of the program.
bool at_own_work() noexcept;

// Who knows whether the current stream of a device is being captured into a graph, where nobody may wait. Nothing: none
// is.
void ask_whether_capturing(bool (*ask)(const c10::Device&)) noexcept;

// The same tensor in memory of the CPU, itself where it is there already; an undefined one where it cannot be had.
at::Tensor on_host(const at::Tensor& tensor) noexcept;

// What was started there is done. A device that is not there is nothing to wait for.
void wait_for_device(const c10::Device& device) noexcept;

}  // namespace finitude::observe
