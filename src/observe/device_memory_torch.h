// Memory that is not the CPU's, as the tape wants it: copied off, in the order of the stream that is current. Only of a step that
// is run again, and of a replay: each of these waits for the device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <string>

namespace finitude::observe {

// Where values are recorded: the CPU, CUDA, and a backend of the program's own (PrivateUse1).
bool is_recorded_device(const c10::Device& device) noexcept;

// As a tape names it: "cuda:0", or "cuda" where it has no number. A backend of the program's own that was renamed to what no tape can
// name ("my_npu") keeps the name by which every torch knows it.
std::string device_name(const c10::Device& device);

// These bytes of a storage; false where they cannot be had. Calls no operator for memory of the CPU; for other memory one copy,
// which nobody observes.
bool copy_bytes(const c10::intrusive_ptr<c10::StorageImpl>& storage, std::int64_t begin, std::int64_t end, std::string* bytes) noexcept;

// The same tensor in memory of the CPU, itself where it is there already; an undefined one where it cannot be had.
at::Tensor on_host(const at::Tensor& tensor) noexcept;

// What was started there is done. A device that is not there is nothing to wait for.
void wait_for_device(const c10::Device& device) noexcept;

}  // namespace finitude::observe
