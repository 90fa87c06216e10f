#include "observe/tape_values_torch.h"

#include <ATen/SparseTensorImpl.h>
#include <ATen/core/Generator.h>

#include <algorithm>
#include <cstring>

#include "observe/concrete_torch.h"
#include "observe/device_memory_torch.h"
#include "observe/tensor_view_torch.h"

namespace finitude::observe {
namespace {

using capture::Value;
using capture::WireWriter;

constexpr std::size_t kMaxConstant = 16;

bool plain(const c10::TensorImpl& impl) {
  const c10::DispatchKeySet keys = impl.key_set();
  return is_concrete(impl) && is_recorded_device(impl.device()) && !keys.has(c10::DispatchKey::Quantized) &&
         !keys.has(c10::DispatchKey::NestedTensor) && impl.dtype().isScalarType();
}

class Scribe {
 public:
  Scribe(std::size_t arg, const TapeNames& names, WireWriter& out, c10::SmallVectorImpl<TapeUse>& uses)
      : arg_(arg), names_(names), out_(out), uses_(uses) {}

  bool value(const c10::IValue& v) {
    if (v.isTensor()) return tensor(v.toTensor());
    if (v.isNone()) return kind(Value::kNone);
    if (v.isInt()) {
      kind(Value::kInt);
      out_.zigzag(v.toInt());
      return true;
    }
    if (v.isDouble()) {
      kind(Value::kDouble);
      out_.f64(v.toDouble());
      return true;
    }
    if (v.isBool()) return kind(v.toBool() ? Value::kTrue : Value::kFalse);
    if (v.isList()) return list(v.toListRef());
    if (v.isString()) {
      kind(Value::kString);
      out_.text(v.toStringRef());
      return true;
    }
    if (v.isDevice()) {
      kind(Value::kDevice);
      out_.text(device_name(v.toDevice()));
      return true;
    }
    if (v.isComplexDouble()) {
      const auto number = v.toComplexDouble();
      kind(Value::kComplex);
      out_.f64(number.real());
      out_.f64(number.imag());
      return true;
    }
    if (v.isGenerator()) {
      const std::int64_t number = names_.generator(v.toGenerator());
      kind(Value::kGenerator);
      out_.zigzag(number);
      return number >= 0;
    }
    return false;
  }

 private:
  bool kind(Value::Kind kind) {
    out_.u8(kind);
    return true;
  }

  bool list(c10::ArrayRef<c10::IValue> items) {
    kind(Value::kList);
    out_.var(items.size());
    for (const c10::IValue& item : items) {
      if (!value(item)) return false;
    }
    return true;
  }

  bool tensor(const at::Tensor& t) {
    if (!t.defined()) return kind(Value::kUndefined);
    const c10::TensorImpl& impl = *t.unsafeGetTensorImpl();
    if (!plain(impl)) return false;
    if (impl.layout() == c10::kStrided) {
      kind(Value::kTensor);
      return dense(impl);
    }
    if (impl.layout() != c10::kSparse || !impl.key_set().has(c10::DispatchKey::Sparse)) return false;
    const auto& sparse = static_cast<const at::SparseTensorImpl&>(impl);
    const at::Tensor indices = sparse.indices(), values = sparse.values();
    if (!indices.defined() || !values.defined()) return false;
    kind(Value::kSparse);
    const auto sizes = sparse.sizes();
    out_.var(sizes.size());
    for (const std::int64_t size : sizes) out_.var(static_cast<std::uint64_t>(size));
    out_.u8(sparse.coalesced());
    for (const at::Tensor* part : {&indices, &values}) {
      if (!plain(*part->unsafeGetTensorImpl()) || part->layout() != c10::kStrided) return false;
      if (!dense(*part->unsafeGetTensorImpl())) return false;
    }
    return true;
  }

  bool dense(const c10::TensorImpl& impl) {
    if (!impl.has_storage() || impl.dim() > static_cast<std::int64_t>(capture::kMaxDims)) return false;
    c10::StorageImpl* storage = impl.unsafe_storage().unsafeGetStorageImpl();
    if (storage == nullptr || (storage->data_ptr().get() == nullptr && storage->nbytes() != 0)) return false;
    const auto item = static_cast<std::int64_t>(impl.itemsize());
    auto meta = impl.dtype();
    capture::TensorParts parts;
    parts.dtype = static_cast<std::uint8_t>(meta.toScalarType());
    parts.flags = static_cast<std::uint8_t>(
        (impl.is_wrapped_number() ? capture::TensorRef::kWrappedNumber : 0) |
        (impl.key_set().has(c10::DispatchKey::Conjugate) ? capture::TensorRef::kConjugate : 0) |
        (impl.key_set().has(c10::DispatchKey::Negative) ? capture::TensorRef::kNegative : 0));
    const auto sizes = impl.sizes(), strides = impl.strides();
    parts.sizes = sizes.data();
    parts.strides = strides.data();
    parts.ndim = sizes.size();
    parts.offset = impl.storage_offset();
    const std::int64_t begin = impl.storage_offset() * item;
    std::int64_t last = 0;
    for (std::size_t d = 0; d < sizes.size(); ++d) last += (sizes[d] - 1) * strides[d];
    const std::int64_t end = impl.numel() == 0 ? begin : begin + (last + 1) * item;
    if (impl.numel() != 0 && end > static_cast<std::int64_t>(storage->nbytes())) return false;
    if (impl.is_cpu() && impl.is_wrapped_number() && impl.numel() == 1 &&
        static_cast<std::size_t>(item) <= kMaxConstant) {
      parts.offset = 0;
      parts.constant = static_cast<const char*>(storage->data_ptr().get()) + begin;
      parts.constant_bytes = static_cast<std::size_t>(item);
    } else {
      parts.storage = names_.storage(*storage);
      uses_.push_back({parts.storage, arg_, begin, end, impl.numel() * item == end - begin});
    }
    capture::write_tensor(out_, parts);
    return true;
  }

  const std::size_t arg_;
  const TapeNames& names_;
  WireWriter& out_;
  c10::SmallVectorImpl<TapeUse>& uses_;
};

}  // namespace

bool write_value(const c10::IValue& value, std::size_t arg, const TapeNames& names, capture::WireWriter& out,
                 c10::SmallVectorImpl<TapeUse>& uses) {
  return Scribe(arg, names, out, uses).value(value);
}

c10::StorageImpl* tape_storage(const c10::TensorImpl& tensor) {
  TensorView view;
  if (view_of(tensor, &view)) return view.storage;  // what torch.func wraps, too
  if (!plain(tensor) || tensor.is_cpu() || tensor.layout() != c10::kStrided || !tensor.has_storage()) return nullptr;
  return tensor.unsafe_storage().unsafeGetStorageImpl();
}

std::uint64_t tape_checksum(const at::Tensor& given) {
  const at::Tensor tensor = on_host(given);
  if (!tensor.defined()) return 0;
  TensorView view;
  if (tensor.layout() == c10::kStrided) return view_of(*tensor.unsafeGetTensorImpl(), &view) ? checksum(view) : 0;
  if (tensor.layout() != c10::kSparse || !tensor.is_cpu()) return 0;
  const auto& sparse = static_cast<const at::SparseTensorImpl&>(*tensor.unsafeGetTensorImpl());
  return tape_checksum(sparse.indices()) * 31 + tape_checksum(sparse.values());
}

std::pair<std::uint64_t, std::string> tape_sample(const at::Tensor& given) {
  const at::Tensor tensor = on_host(given);
  TensorView v;
  if (!tensor.defined() || tensor.layout() != c10::kStrided || tensor.is_conj() || tensor.is_neg() ||
      !view_of(*tensor.unsafeGetTensorImpl(), &v) || v.batched || v.numel == 0) {
    return {};
  }
  const auto count = static_cast<std::uint64_t>(v.numel);
  const std::uint64_t every = (count + capture::kMaxSample - 1) / capture::kMaxSample;
  const auto item = static_cast<std::int64_t>(tensor.element_size());
  std::string bytes;
  for (std::uint64_t n = 0; n < count; n += every) {
    std::int64_t offset = 0, left = static_cast<std::int64_t>(n);
    for (std::size_t d = v.sizes.size(); d-- > 0; left /= v.sizes[d]) offset += left % v.sizes[d] * v.strides[d];
    bytes.append(v.data + offset * item, static_cast<std::size_t>(item));
  }
  return {every, std::move(bytes)};
}

capture::Flaws tape_flaws(const at::Tensor& given) {
  const at::Tensor tensor = on_host(given);
  if (!tensor.defined()) return {};
  if (tensor.layout() == c10::kSparse && tensor.is_cpu())
    return tape_flaws(static_cast<const at::SparseTensorImpl&>(*tensor.unsafeGetTensorImpl()).values());
  TensorView view;
  if (tensor.layout() != c10::kStrided || !view_of(*tensor.unsafeGetTensorImpl(), &view)) return {};
  if (view.dtype == sense::DType::kOther) return {true, 0, 0};
  const sense::Health health = full(view);
  return {true, health.nan, health.inf()};
}

}  // namespace finitude::observe
