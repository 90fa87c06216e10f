#include "observe/call_copy_torch.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>

#include <cmath>
#include <cstring>

#include "observe/tensor_view_torch.h"

namespace finitude::observe {
namespace {

constexpr std::size_t kMaxCapturePerOp = 64u << 20;

// A copy with the same geometry, made without any operator call.
at::Tensor raw_copy(const at::Tensor& t, const TensorView& v) {
  const auto span = static_cast<std::size_t>(v.end - v.begin);
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), static_cast<std::int64_t>(span),
                                                       c10::GetCPUAllocator(), false);
  if (span != 0) std::memcpy(storage->mutable_data(), v.data, span);
  at::Tensor copy = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)),
                                                             c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
  copy.unsafeGetTensorImpl()->set_sizes_and_strides(v.sizes, v.strides);
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  return copy;
}

struct ArgCopier {
  std::size_t bytes = 0;
  bool ok = true;
  at::Tensor copy(const at::Tensor& t) {
    TensorView v;
    if (!t.defined()) return t;
    if (!ok || !view_of(*t.unsafeGetTensorImpl(), &v) || t.is_conj() || t.is_neg() ||
        t.key_set().has(c10::DispatchKey::FuncTorchBatched)) {  // with a dimension that the call does not know of
      ok = false;
      return {};
    }
    bytes += static_cast<std::size_t>(v.end - v.begin);
    if (bytes > kMaxCapturePerOp) { ok = false; return {}; }
    return raw_copy(t, v);
  }
  c10::IValue operator()(const c10::IValue& v) {
    if (v.isTensor()) return copy(v.toTensor());
    if (v.isTensorList()) {
      c10::List<at::Tensor> out;
      for (const at::Tensor& t : v.toTensorVector()) out.push_back(copy(t));
      return out;
    }
    if (v.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> out;
      for (const auto& t : v.toOptionalTensorVector()) out.push_back(t ? std::optional<at::Tensor>(copy(*t)) : std::nullopt);
      return out;
    }
    if (v.isGenerator()) { ok = false; return {}; }
    return v;
  }
};

}  // namespace

std::string text_of(const c10::IValue& v, std::optional<double>* number) {
  if (v.isDouble()) { *number = v.toDouble(); return std::to_string(v.toDouble()); }
  if (v.isInt()) { *number = static_cast<double>(v.toInt()); return std::to_string(v.toInt()); }
  if (v.isBool()) return v.toBool() ? "True" : "False";
  if (v.isScalar()) {
    const c10::Scalar s = v.toScalar();
    if (s.isFloatingPoint()) { *number = s.toDouble(); return std::to_string(s.toDouble()); }
    if (s.isIntegral(true)) { *number = static_cast<double>(s.toLong()); return std::to_string(s.toLong()); }
    return "complex";
  }
  if (v.isNone()) return "None";
  if (v.isString()) return v.toStringRef().substr(0, 64);
  if (v.isIntList()) {
    std::string out = "[";
    const auto list = v.toIntVector();
    for (std::size_t i = 0; i < list.size() && i < 16; ++i) out += (i ? ", " : "") + std::to_string(list[i]);
    return out + "]";
  }
  if (v.isDoubleList()) {
    std::string out = "[";
    for (double d : v.toDoubleVector()) {
      out += (out.size() > 1 ? ", " : "") + std::to_string(d);
      if (!std::isfinite(d)) *number = d;  // a list with a non-finite member: intent, or a bad hyper-parameter
    }
    return out + "]";
  }
  return "";
}

std::shared_ptr<CapturedCall> copy_call(const std::string& op, const char* overload, c10::ArrayRef<const c10::IValue> args,
                                        std::size_t* size_bytes) {
  ArgCopier copier;
  auto call = std::make_shared<CapturedCall>();
  call->args.reserve(args.size());
  for (const auto& v : args) call->args.push_back(copier(v));
  if (!copier.ok) return nullptr;
  call->op = op;
  call->overload = overload;
  *size_bytes = copier.bytes;
  return call;
}

}  // namespace finitude::observe
