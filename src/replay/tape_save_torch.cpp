#include "replay/tape_save_torch.h"

#include <ATen/core/Tensor.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>

#include "capture/safetensors.h"

namespace finitude::replay {
const char* safetensors_word(c10::ScalarType dtype) {
  using c10::ScalarType;
  switch (dtype) {
    case ScalarType::Byte:
      return "U8";
    case ScalarType::Char:
      return "I8";
    case ScalarType::Short:
      return "I16";
    case ScalarType::Int:
      return "I32";
    case ScalarType::Long:
      return "I64";
    case ScalarType::Half:
      return "F16";
    case ScalarType::Float:
      return "F32";
    case ScalarType::Double:
      return "F64";
    case ScalarType::ComplexFloat:
      return "C64";
    case ScalarType::Bool:
      return "BOOL";
    case ScalarType::BFloat16:
      return "BF16";
    case ScalarType::Float8_e5m2:
      return "F8_E5M2";
    case ScalarType::Float8_e4m3fn:
      return "F8_E4M3";
    default:
      return nullptr;
  }
}

Status save_tensors(const std::string& path, const std::vector<NamedTensor>& tensors) {
  std::vector<at::Tensor> plain;
  std::vector<capture::NamedTensor> named;
  std::set<std::string> names{"__metadata__"};
  plain.reserve(tensors.size());
  for (const NamedTensor& t : tensors) {
    const char* word = safetensors_word(t.tensor.scalar_type());
    if (word == nullptr || capture::safetensors_item_bytes(word) == 0)
      return Status("cannot be saved: safetensors has no word for the dtype of " + t.name);
    std::string name = t.name;
    for (int again = 2; !names.insert(name).second; ++again) name = t.name + "#" + std::to_string(again);
    const at::Tensor dense = t.tensor.layout() == c10::kStrided ? t.tensor : t.tensor.to_dense();
    plain.push_back(dense.resolve_conj().resolve_neg().contiguous());
    const auto sizes = plain.back().sizes();
    named.push_back({name, word, {sizes.begin(), sizes.end()},
                     {static_cast<const char*>(plain.back().const_data_ptr()), plain.back().nbytes()}});
  }
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  const std::string header = capture::safetensors_header(named);
  file.write(header.data(), static_cast<std::streamsize>(header.size()));
  for (const capture::NamedTensor& t : named)
    file.write(t.bytes.data(), static_cast<std::streamsize>(t.bytes.size()));
  file.close();
  if (file) return {};
  return Status("cannot be written" + (errno != 0 ? std::string(": ") + std::strerror(errno) : std::string()));
}

}  // namespace finitude::replay
