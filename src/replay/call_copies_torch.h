// Copies of the arguments of a call, as they are before it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <utility>
#include <vector>

#include "replay/tape_statistics_torch.h"

namespace finitude::replay {

// For one call: what is given twice is one copy.
class CallCopies {
 public:
  std::vector<c10::IValue> of(c10::ArrayRef<c10::IValue> arguments) {
    std::vector<c10::IValue> copies;
    for (const c10::IValue& argument : arguments) copies.push_back(copied(argument));
    known_.clear();
    return copies;
  }

 private:
  // A dimension that only repeats one element keeps doing so.
  at::Tensor copied_tensor(const at::Tensor& t) {
    if (!t.defined() || t.layout() != c10::kStrided) return copy_of(t);
    for (const auto& [seen, copy] : known_) {
      if (seen.unsafeGetTensorImpl()->storage().unsafeGetStorageImpl() ==
              t.unsafeGetTensorImpl()->storage().unsafeGetStorageImpl() &&
          seen.storage_offset() == t.storage_offset() && seen.sizes() == t.sizes() && seen.strides() == t.strides() &&
          seen.scalar_type() == t.scalar_type())
        return copy;
    }
    at::Tensor base = t;
    for (std::int64_t d = 0; d < t.dim(); ++d) {
      if (t.stride(d) == 0 && t.size(d) > 1) base = base.narrow(d, 0, 1);
    }
    at::Tensor copy = base.clone();
    if (t.unsafeGetTensorImpl()->is_wrapped_number()) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
    copy = copy.sizes() == t.sizes() ? copy : copy.expand(t.sizes());
    known_.emplace_back(t, copy);
    return copy;
  }
  c10::IValue copied(const c10::IValue& value) {
    if (value.isTensor()) return copied_tensor(value.toTensor());
    if (!value.isList()) return value;
    c10::impl::GenericList list(value.toList().elementType());
    for (const c10::IValue& item : value.toListRef()) list.push_back(copied(item));
    return list;
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> known_;
};

}  // namespace finitude::replay
