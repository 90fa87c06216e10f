// The safetensors format: named tensors in one file, no code in it. A writer and a reader that trusts
// nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "finitude/status.h"

namespace finitude::capture {

struct NamedTensor {
  std::string name, dtype;  // "F32", "I64", "U8" ...
  std::vector<std::int64_t> shape;
  std::string_view bytes;  // row-major, little-endian
};

// Bytes of an element of that dtype; 0: unknown.
std::size_t safetensors_item_bytes(std::string_view dtype) noexcept;

// The first part of the file; the bytes of the tensors follow in this order, nothing between them.
// Names must differ, and each tensor have the bytes of its shape.
std::string safetensors_header(const std::vector<NamedTensor>& tensors);

// A tensor of a file, without its bytes.
struct SafetensorsEntry {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // offsets in the file
};

// Bytes before those of the tensors, by the first eight of a file; 0: no file begins so.
std::uint64_t safetensors_header_bytes(std::string_view front) noexcept;

// header: that many bytes of a file of `file_bytes`. The entries are in the order of the file. As strict as the format
// asks for: no overlap, no hole, nothing behind the last tensor, no name twice, no size that does not fit.
Status read_safetensors_header(std::string_view header, std::uint64_t file_bytes,
                               std::vector<SafetensorsEntry>* entries);

// The same of a file in memory. The tensors point into `file`, which has to outlive them.
Status read_safetensors(std::string_view file, std::vector<NamedTensor>* tensors);

}  // namespace finitude::capture
