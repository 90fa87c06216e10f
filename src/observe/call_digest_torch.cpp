#include "observe/call_digest_torch.h"

#include <ATen/core/Tensor.h>

#include "observe/tape_values_torch.h"

namespace finitude::observe {

std::uint64_t value_digest(const c10::TensorImpl& tensor) {
  if (&tensor == c10::UndefinedTensorImpl::singleton()) return 0;
  const at::Tensor held(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(
      const_cast<c10::TensorImpl*>(&tensor)));
  return held.defined() && held.is_cpu() && tape_storage(tensor) != nullptr ? tape_checksum(held) : 0;
}

std::uint64_t value_digest(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined() || !tensor.is_cpu()) return 0;
    return tensor.layout() == c10::kSparse ? tape_checksum(tensor) : value_digest(*tensor.unsafeGetTensorImpl());
  }
  std::uint64_t digest = 0;
  if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) digest = digest * 1099511628211ull + value_digest(item);
  }
  return digest;
}

std::vector<std::uint64_t> input_digests(c10::ArrayRef<c10::IValue> arguments, std::uint64_t overwrites) {
  std::vector<std::uint64_t> digests;
  digests.reserve(arguments.size());
  for (std::size_t i = 0; i < arguments.size(); ++i)
    digests.push_back(i < 64 && ((overwrites >> i) & 1) != 0 ? 0 : value_digest(arguments[i]));
  return digests;
}

}  // namespace finitude::observe
