// The arguments of an operator call, copied before the kernel can overwrite them, and told as text.
#pragma once

#include <ATen/core/ivalue.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace finitude::observe {

// A call that made a non-finite value, with copies of its inputs as they were before it ran.
struct CapturedCall {
  std::string op, overload;
  std::vector<c10::IValue> args;
};

// Copies of all arguments, made without calling an operator; null where one cannot be copied (not plain CPU memory,
// a generator, more than 64 MB). `size_bytes`: what the copies hold.
std::shared_ptr<CapturedCall> copy_call(const std::string& op, const char* overload, c10::ArrayRef<const c10::IValue> args,
                                        std::size_t* size_bytes);

// A non-tensor argument as printed; `number` where it is one (or a list with a non-finite member).
std::string text_of(const c10::IValue& value, std::optional<double>* number);

}  // namespace finitude::observe
