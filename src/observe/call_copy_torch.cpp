#include "observe/call_copy_torch.h"

#include <ATen/EmptyTensor.h>

#include <charconv>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>

#include "observe/device_memory_torch.h"
#include "observe/distributed_names_torch.h"
#include "observe/effort.h"
#include "observe/op_tensors_torch.h"
#include "observe/spare_blocks.h"
#include "observe/tensor_view_torch.h"

namespace finitude::observe {
namespace {

constexpr std::size_t kMaxCapturePerOp = 64u << 20;

SpareBlocks& spare_blocks() {
  static auto* blocks = new SpareBlocks();  // copies may outlive main
  return *blocks;
}

struct Block {
  void* data;
  std::size_t bytes;
};

void give_back(void* context) {
  auto* block = static_cast<Block*>(context);
  spare_blocks().give(block->data, block->bytes);
  delete block;
}

at::DataPtr memory_for(std::size_t bytes) {
  auto block = std::make_unique<Block>(Block{spare_blocks().take(bytes), bytes});
  if (block->data == nullptr) throw std::bad_alloc();
  void* data = block->data;
  return {data, block.release(), &give_back, at::Device(at::kCPU)};
}

// A copy with the same geometry in memory of the CPU; from there it is made without any operator call.
at::Tensor raw_copy(const at::Tensor& t, const TensorView& v) {
  const auto span = static_cast<std::size_t>(v.end - v.begin);
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<std::int64_t>(span), memory_for(span), nullptr, false);
  count(&effort().copied_bytes, v.end - v.begin);
  if (!copy_to(v, storage->mutable_data())) return {};
  at::Tensor copy = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)),
                                                             c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
  copy.unsafeGetTensorImpl()->set_sizes_and_strides(v.sizes, v.strides);
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  return copy;
}

// All the digits that distinguish this number from others, and no more, as Python prints it: 1e-08, 0.1, 2.0.
std::string digits(double number) {
  if (std::isnan(number)) return "nan";  // whatever its sign bit
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, number).ptr;
  std::string out(text, end);
  if (std::isfinite(number) && out.find_first_of(".e") == std::string::npos) out += ".0";
  return out;
}

}  // namespace

void free_spare_copies() noexcept { spare_blocks().clear(); }

std::string text_of(const c10::IValue& v, std::optional<double>* number) {
  if (v.isDouble()) {
    *number = v.toDouble();
    return digits(v.toDouble());
  }
  if (v.isInt()) {
    *number = static_cast<double>(v.toInt());
    return std::to_string(v.toInt());
  }
  if (v.isBool()) return v.toBool() ? "True" : "False";
  if (v.isScalar()) {
    const c10::Scalar s = v.toScalar();
    if (s.isFloatingPoint()) {
      *number = s.toDouble();
      return digits(s.toDouble());
    }
    if (s.isIntegral(true)) {
      *number = static_cast<double>(s.toLong());
      return std::to_string(s.toLong());
    }
    return "complex";
  }
  if (v.isNone()) return "None";
  if (v.isString()) return v.toStringRef().substr(0, 64);
  if (v.isIntList()) {
    constexpr std::size_t kMostText = 60'000;  // a file of a trace takes texts of 64 KiB
    std::string out = "[";
    for (const std::int64_t i : v.toIntVector()) {
      if (out.size() > kMostText) return out + ", ...]";
      out += (out.size() > 1 ? ", " : "") + std::to_string(i);
    }
    return out + "]";
  }
  if (v.isDoubleList()) {
    std::string out = "[";
    for (double d : v.toDoubleVector()) {
      out += (out.size() > 1 ? ", " : "") + digits(d);
      if (!std::isfinite(d)) *number = d;  // a list with a non-finite member: intent, or a bad hyper-parameter
    }
    return out + "]";
  }
  return name_of_distributed(v).value_or("");
}

HeldCall::Tensor HeldCall::hold(const at::Tensor& t, bool copy_now) {
  Tensor held;
  TensorView v;
  if (!t.defined()) return held;
  held.impl = t.unsafeGetTensorImpl();
  if (!ok_ || !place_of(*t.unsafeGetTensorImpl(), &v) || t.is_conj() || t.is_neg() || v.batched) {
    ok_ = false;
    return held;
  }
  bytes_ += static_cast<std::size_t>(v.end - v.begin);
  if (bytes_ > kMaxCapturePerOp) {
    ok_ = false;
  } else if (copy_now) {
    held.copy = raw_copy(t, v);
    ok_ = held.copy.defined();
  } else {
    held.original.emplace(t.getIntrusivePtr());
    held.data = v.data;
  }
  return held;
}

void HeldCall::hold(const c10::IValue& value, c10::function_ref<bool(const at::Tensor&)> changes) {
  Arg& arg = args_.emplace_back();
  if (value.isTensor()) {
    arg.kind = Arg::kTensor;
    arg.tensors.push_back(hold(value.toTensor(), changes(value.toTensor())));
  } else if (value.isTensorList()) {
    arg.kind = Arg::kTensors;
    for (const at::Tensor& t : value.toTensorVector()) arg.tensors.push_back(hold(t, changes(t)));
  } else if (value.isOptionalTensorList()) {
    arg.kind = Arg::kOptionalTensors;
    for (const auto& t : value.toOptionalTensorVector()) {
      arg.tensors.push_back(t ? hold(*t, changes(*t)) : Tensor());
    }
  } else if (value.isGenerator() || is_list_of_tensor_lists(value)) {
    ok_ = false;
  } else if (value.isDevice()) {
    arg.value = c10::Device(c10::kCPU);  // where the copies are
  } else {
    arg.value = value;
  }
}

const c10::TensorImpl* HeldCall::copied(const c10::TensorImpl* original) const {
  for (const Arg& arg : args_) {
    for (const Tensor& t : arg.tensors) {
      if (t.impl == original && t.copy.defined()) return t.copy.unsafeGetTensorImpl();
    }
  }
  return nullptr;
}

at::Tensor HeldCall::copy_of(const Tensor& held) {
  if (held.impl == nullptr || held.copy.defined()) return held.copy;
  const auto impl = held.original->lock();
  TensorView v;
  if (!impl.defined() || !place_of(*impl, &v) || v.data != held.data) {
    ok_ = false;
    return {};
  }
  at::Tensor copy = raw_copy(at::Tensor(impl), v);
  ok_ = ok_ && copy.defined();
  return copy;
}

std::shared_ptr<CapturedCall> HeldCall::finish(const std::string& op, const char* overload, std::size_t* size_bytes) {
  if (!ok_) return nullptr;  // and some tensor is held by nothing
  auto call = std::make_shared<CapturedCall>();
  for (Arg& arg : args_) {
    if (arg.kind == Arg::kValue) {
      call->args.push_back(std::move(arg.value));
    } else if (arg.kind == Arg::kTensor) {
      call->args.emplace_back(copy_of(arg.tensors.front()));
    } else if (arg.kind == Arg::kTensors) {
      c10::List<at::Tensor> list;
      for (const Tensor& t : arg.tensors) list.push_back(copy_of(t));
      call->args.emplace_back(std::move(list));
    } else {
      c10::List<std::optional<at::Tensor>> list;
      for (const Tensor& t : arg.tensors)
        list.push_back(t.impl != nullptr ? std::optional<at::Tensor>(copy_of(t)) : std::nullopt);
      call->args.emplace_back(std::move(list));
    }
  }
  if (!ok_) return nullptr;
  call->op = op;
  call->overload = overload;
  *size_bytes = bytes_;
  return call;
}

}  // namespace finitude::observe
