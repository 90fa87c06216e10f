// The arguments of an operator call, copied before the kernel can overwrite them, and reported as text.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "observe/seen_torch.h"

namespace finitude::observe {

// A call that made a non-finite value, with copies of its inputs as they were before it ran.
// Its tensors are copies in memory of the CPU, also where the call was one of a device.
struct CapturedCall {
  std::string op, overload;
  std::vector<c10::IValue> args;
};

// The arguments of a call that has begun. What the call may change is copied at once, without calling an operator; the
// rest is kept weakly and copied only if the call turns out to be worth it.
class HeldCall {
 public:
  // `changes(i, tensor)`: may the call write this tensor, handed over in argument i?
  template <typename Changes>
  HeldCall(c10::ArrayRef<const c10::IValue> args, const Changes& changes) {
    args_.reserve(args.size());
    for (std::size_t i = 0; i < args.size() && ok_; ++i) {
      hold(args[i], [&](const at::Tensor& t) { return changes(i, t); });
    }
  }

  // The copy of a tensor that the call may change; null where there is none.
  const c10::TensorImpl* copied(const c10::TensorImpl* original) const;

  // To be called when the call has ended. Null where an argument cannot be copied: not plain CPU memory, gone by now, a
  // generator, more than 64 MB.
  std::shared_ptr<CapturedCall> finish(const std::string& op, const char* overload, std::size_t* size_bytes);

 private:
  struct Tensor {
    const c10::TensorImpl* impl = nullptr;  // null: undefined
    at::Tensor copy;                        // of what may change
    std::optional<WeakTensor> original;     // of what may not
    const char* data = nullptr;
  };
  struct Arg {
    enum Kind : std::uint8_t { kValue, kTensor, kTensors, kOptionalTensors } kind = kValue;
    c10::IValue value;
    c10::SmallVector<Tensor, 1> tensors;
  };

  void hold(const c10::IValue& value, c10::function_ref<bool(const at::Tensor&)> changes);
  Tensor hold(const at::Tensor& t, bool copy_now);
  at::Tensor copy_of(const Tensor& held);

  std::vector<Arg> args_;
  std::size_t bytes_ = 0;
  bool ok_ = true;
};

// Copies that are thrown away leave their memory for the next ones, up to 128 MB; nobody needs them now.
void free_spare_copies() noexcept;

// A non-tensor argument as printed; `number` where it is one (or a list with a non-finite member).
std::string text_of(const c10::IValue& value, std::optional<double>* number);

}  // namespace finitude::observe
