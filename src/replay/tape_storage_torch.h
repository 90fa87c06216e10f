// New memory for a tape that is being played, the bytes in it, and whether a view lies inside. Holds nothing: who asks
// for memory owns it. Any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>

#include <cstddef>

#include "capture/tape.h"

namespace finitude::replay {

// Of the CPU, at an address that is so many bytes beyond an aligned one. `content`: its bytes, which are copied; null:
// zeros. Throws c10::Error where there is no such memory.
c10::Storage new_storage(std::size_t size_bytes, std::size_t misaligned, const char* content);
// The same on any device; only the CPU knows misaligned memory.
c10::Storage new_storage_on(c10::Device device, std::size_t size_bytes, std::size_t misaligned, const char* content);

// The bytes of a storage on any device, as a tensor that shares it.
at::Tensor bytes_in(const c10::Storage& storage);
// Bytes of the host, as a tensor that borrows them.
at::Tensor bytes_at(const char* content, std::size_t size_bytes);

// A view of elements of `item` bytes lies inside of so much memory. Throws where its numbers overflow or it has
// elements outside.
void check_inside(const capture::TensorRef& ref, std::size_t item, std::size_t storage_bytes);

}  // namespace finitude::replay
