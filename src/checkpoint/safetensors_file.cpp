// Files of the safetensors format.
#include "capture/safetensors.h"

#include <algorithm>

#include "checkpoint/readers.h"
#include "checkpoint/saved_tensors.h"
#include "checkpoint/views.h"

namespace finitude::checkpoint {
namespace {

constexpr std::pair<std::string_view, std::string_view> kNames[] = {{"BOOL", "bool"},
                                                                    {"U8", "uint8"},
                                                                    {"I8", "int8"},
                                                                    {"F8_E5M2", "float8_e5m2"},
                                                                    {"I16", "int16"},
                                                                    {"U16", "uint16"},
                                                                    {"F16", "float16"},
                                                                    {"F8_E4M3", "float8_e4m3fn"},
                                                                    {"I32", "int32"},
                                                                    {"U32", "uint32"},
                                                                    {"F32", "float32"},
                                                                    {"F8_E5M2FNUZ", "float8_e5m2fnuz"},
                                                                    {"I64", "int64"},
                                                                    {"U64", "uint64"},
                                                                    {"F64", "float64"},
                                                                    {"F8_E4M3FNUZ", "float8_e4m3fnuz"},
                                                                    {"C64", "complex64"},
                                                                    {"BF16", "bfloat16"},
                                                                    {"F8_E8M0", "float8_e8m0fnu"}};

std::string_view torch_name(std::string_view dtype) {
  const auto* found =
      std::find_if(std::begin(kNames), std::end(kNames), [&](const auto& pair) { return pair.first == dtype; });
  return found != std::end(kNames) ? found->second : "uint8";
}

}  // namespace

Status read_safetensors_file(const Region& file, Checkpoint* checkpoint) {
  std::string front(std::min<std::uint64_t>(file.bytes, 8), '\0');
  if (Status status = file.read(0, front.data(), front.size()); !status.ok()) return status;
  const std::uint64_t header_bytes = capture::safetensors_header_bytes(front);
  if (header_bytes == 0 || header_bytes > file.bytes)
    return Status(StatusCode::kCorrupt, "is no safetensors file, or is cut off");
  front.resize(static_cast<std::size_t>(header_bytes));
  if (Status status = file.read(0, front.data(), front.size()); !status.ok()) return status;
  std::vector<capture::SafetensorsEntry> entries;
  if (Status status = capture::read_safetensors_header(front, file.bytes, &entries); !status.ok()) return status;
  for (capture::SafetensorsEntry& entry : entries) {
    const Result<Region> data = file.part(entry.begin, entry.end - entry.begin);
    if (!data.ok()) return Status(StatusCode::kCorrupt, "is cut off");
    Tensor tensor;
    tensor.sign = sign_of(entry.name);
    tensor.name = std::move(entry.name);
    tensor.storage = checkpoint->storages.size();
    tensor.strides = dense_strides(entry.shape);
    tensor.shape = std::move(entry.shape);
    checkpoint->storages.push_back({*data, *element_type(torch_name(entry.dtype))});
    checkpoint->tensors.push_back(std::move(tensor));
  }
  return {};
}

}  // namespace finitude::checkpoint
