#include "replay/tape_save_torch.h"

#include <ATen/core/Tensor.h>

#include <set>
#include <string_view>

#include "base/file.h"
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
      return Status(StatusCode::kUnsupported, "cannot be saved: safetensors has no word for the dtype of " + t.name);
    std::string name = t.name;
    for (int again = 2; !names.insert(name).second; ++again) name = t.name + "#" + std::to_string(again);
    const at::Tensor dense = t.tensor.layout() == c10::kStrided ? t.tensor : t.tensor.to_dense();
    plain.push_back(dense.resolve_conj().resolve_neg().contiguous());
    const auto sizes = plain.back().sizes();
    named.push_back({name,
                     word,
                     {sizes.begin(), sizes.end()},
                     {static_cast<const char*>(plain.back().const_data_ptr()), plain.back().nbytes()}});
  }
  const std::string header = capture::safetensors_header(named);
  std::vector<std::string_view> parts{header};
  for (const capture::NamedTensor& t : named) parts.push_back(t.bytes);
  return base::write_whole(path, parts);
}

}  // namespace finitude::replay
