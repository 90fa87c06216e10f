// The leaf tensors below a bad loss. They show whose parameters it belongs to, also after the program has let go of
// them: the loss is kept until a step answers for it.
#pragma once

#include <ATen/core/TensorBase.h>

#include <algorithm>
#include <unordered_map>

namespace finitude::bindings {

class LossLeaves {
 public:
  void insert(const at::TensorBase& leaf) { leaves_.try_emplace(leaf.unsafeGetTensorImpl(), leaf.getIntrusivePtr()); }
  bool contains(const c10::TensorImpl* tensor) const { return leaves_.contains(tensor); }

  // Does `is` hold for any? is(address) -> bool.
  template <typename Predicate>
  bool any(Predicate is) const {
    return std::any_of(leaves_.begin(), leaves_.end(), [&](const auto& leaf) { return is(leaf.first); });
  }

  template <typename Visit>
  void for_each(Visit visit) const {
    for (const auto& leaf : leaves_) visit(leaf.first);
  }

 private:
  // A weak reference keeps the address of a dead tensor from being used again: a parameter of a later optimizer there
  // would be taken for this leaf. It does not keep the memory of the values.
  std::unordered_map<const c10::TensorImpl*, c10::weak_intrusive_ptr<c10::TensorImpl>> leaves_;
};

}  // namespace finitude::bindings
