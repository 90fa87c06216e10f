#include "replay/tape_memory_torch.h"

#include <ATen/SparseTensorImpl.h>
#include <ATen/core/List.h>
#include <c10/core/ScalarType.h>
#include <c10/core/TensorOptions.h>

#include <algorithm>
#include <cstring>

#include "replay/tape_storage_torch.h"

namespace finitude::replay {
namespace {

using capture::StorageId;
using capture::TensorRef;
using capture::Value;

bool same_form(const TensorRef& a, const TensorRef& b) {
  return a.dtype == b.dtype && a.offset == b.offset && a.sizes == b.sizes && a.strides == b.strides;
}

}  // namespace

TapeMemory::TapeMemory(const capture::Tape& tape, std::optional<c10::ScalarType> dtype, const DeviceMap& map,
                       PlayObserver* observer)
    : tape_(tape), observer_(observer), map_(map), storages_(tape.storages.size()), last_used_(tape.entries.size()) {
  if (dtype) retype_.emplace(tape, *dtype);
  constexpr std::size_t kNever = static_cast<std::size_t>(-1);
  std::vector<std::size_t> last(tape.storages.size(), kNever);
  std::vector<bool> kept(tape.storages.size(), false);
  for (std::size_t i = 0; i < tape.entries.size(); ++i) {
    const auto use = [&](const TensorRef& t) {
      if (t.storage < last.size()) last[t.storage] = i;
    };
    capture::for_each_tensor(tape.entries[i].args, use);
    capture::for_each_tensor(tape.entries[i].results, use);
    // What a call drew is filled in behind it, also where nobody reads it.
    if (tape.entries[i].kind == capture::Entry::kFill && tape.entries[i].number < last.size())
      last[tape.entries[i].number] = i;
  }
  for (const capture::Exchange& exchange : tape.exchanges) {
    capture::for_each_tensor(exchange.args, [&](const TensorRef& t) {
      if (t.storage >= last.size()) return;
      if (exchange.before >= tape.entries.size()) {
        kept[t.storage] = true;
      } else if (last[t.storage] == kNever || last[t.storage] < exchange.before) {
        last[t.storage] = exchange.before;
      }
    });
  }
  for (const capture::Outcome& outcome : tape.outcomes) {
    capture::for_each_tensor(outcome.value, [&](const TensorRef& t) {
      if (t.storage < kept.size()) kept[t.storage] = true;
    });
  }
  for (StorageId id = 0; id < last.size(); ++id) {
    if (last[id] != kNever && !kept[id]) last_used_[last[id]].push_back(id);
  }
}

c10::Storage& TapeMemory::storage(StorageId id) {
  TORCH_CHECK(id < storages_.size(), "the tape names a storage that it does not have");
  c10::Storage& slot = storages_[id];
  if (slot.unsafeGetStorageImpl() == nullptr) {
    const capture::Storage& known = tape_.storages[id];
    TORCH_CHECK(known.origin != capture::Storage::kProduced, "the tape reads memory before it is made");
    const bool has_bytes = known.origin == capture::Storage::kInput;
    TORCH_CHECK(!has_bytes || known.bytes.size() == known.size_bytes, "the content of an input is not there");
    slot = new_storage_on(device_of(id), known.size_bytes, known.misaligned, has_bytes ? known.bytes.data() : nullptr);
    if (retype_ && retype_->converts(id)) slot = retype_->converted(id, slot);
    if (has_bytes && !retype_ && slot.device().is_cpu() && observer_ != nullptr) observer_->given(id, slot);
  }
  return slot;
}

at::Tensor TapeMemory::dense(const TensorRef& ref) {
  const bool constant = ref.storage == capture::kNoStorage;
  if (const auto other = stand_ins_.find(ref.storage); !constant && other != stand_ins_.end()) {
    TORCH_CHECK(same_form(ref, other->second.as), "reads a part of what has another form on this device");
    return other->second.tensor;
  }
  c10::Storage memory = constant ? new_storage(ref.constant.size(), 0, ref.constant.data()) : storage(ref.storage);
  if (as_recorded_ && !constant && retype_->converts(ref.storage)) memory = retype_->shadow(ref.storage, memory);
  if (on_host_ && !constant && !memory.device().is_cpu()) {
    const auto [found, is_new] = hosts_.try_emplace(ref.storage);
    if (is_new) found->second = bytes_in(memory).to(at::kCPU).storage();
    memory = found->second;
  }
  const c10::ScalarType dtype = dtype_of(ref);
  const std::size_t item =
      static_cast<std::uint8_t>(dtype) == ref.dtype ? capture::item_bytes(ref.dtype) : c10::elementSize(dtype);
  check_inside(ref, item, memory.nbytes());
  at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(memory), c10::DispatchKeySet(c10::computeDispatchKey(dtype, c10::kStrided, memory.device())),
      c10::scalarTypeToTypeMeta(dtype));
  c10::TensorImpl* impl = t.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(ref.sizes, ref.strides);
  impl->set_storage_offset(ref.offset);
  if ((ref.flags & TensorRef::kWrappedNumber) != 0 && ref.sizes.empty()) impl->set_wrapped_number(true);
  if ((ref.flags & TensorRef::kConjugate) != 0 && t.is_complex()) impl->_set_conj(true);
  if ((ref.flags & TensorRef::kNegative) != 0) impl->_set_neg(true);
  return t;
}

c10::ScalarType TapeMemory::dtype_of(const TensorRef& ref) const {
  const auto recorded = static_cast<c10::ScalarType>(ref.dtype);
  const bool converts =
      retype_ && !as_recorded_ && ref.storage != capture::kNoStorage && retype_->converts(ref.storage);
  return converts ? retype_->of(recorded) : recorded;
}

bool TapeMemory::converts(const std::vector<Value>& values) const {
  bool any = false;
  capture::for_each_tensor(values, [&](const TensorRef& t) {
    any = any || (retype_ && t.storage < storages_.size() && retype_->converts(t.storage));
  });
  return any;
}

std::vector<StorageId> TapeMemory::unmade(const std::vector<Value>& results) const {
  std::vector<StorageId> fresh;
  capture::for_each_tensor(results, [&](const TensorRef& t) {
    if (t.storage < storages_.size() && storages_[t.storage].unsafeGetStorageImpl() == nullptr)
      fresh.push_back(t.storage);
  });
  return fresh;
}

void TapeMemory::unmake(const std::vector<StorageId>& fresh) {
  for (const StorageId id : fresh) storages_[id] = c10::Storage();
}

void TapeMemory::set_as_recorded(bool on) {
  if (!retype_ || as_recorded_ == on) return;
  as_recorded_ = on;
  if (!on) retype_->end_shadows(storages_);
}

c10::Storage TapeMemory::on_device(StorageId id, const c10::Storage& host) const {
  return new_storage_on(device_of(id), host.nbytes(), 0, static_cast<const char*>(host.data()));
}

void TapeMemory::set_on_host(bool on) {
  on_host_ = on;
  if (on) return;
  for (const auto& [id, host] : hosts_) {
    if (storages_[id].unsafeGetStorageImpl() == nullptr) {
      storages_[id] = on_device(id, host);  // of a result
    } else if (host.nbytes() == storages_[id].nbytes() && host.nbytes() != 0) {
      bytes_in(storages_[id]).copy_(bytes_in(host));  // whatever was written into it
    }
  }
  hosts_.clear();
}

// What a tape says of sizes is bounded by nothing; memory that is not there is reported.
c10::Storage TapeMemory::blank(StorageId id) const {
  const auto size_bytes = static_cast<std::size_t>(tape_.storages[id].size_bytes);
  return new_storage_on(device_of(id),
                        retype_ && retype_->converts(id) ? retype_->converted_bytes(id, size_bytes) : size_bytes, 0,
                        nullptr);
}

void TapeMemory::make(const std::vector<Value>& results) {
  for (const StorageId id : unmade(results)) {
    storages_[id] = blank(id);
  }
}

at::Tensor TapeMemory::tensor(const Value& value) {
  if (value.kind == Value::kUndefined) return {};
  if (value.kind == Value::kTensor) return dense(value.tensors.at(0));
  TORCH_CHECK(value.kind == Value::kSparse, "the tape has another value where a tensor belongs");
  const at::Tensor indices = dense(value.tensors.at(0)), values = dense(value.tensors.at(1));
  TORCH_CHECK(indices.dim() == 2 && indices.scalar_type() == at::kLong && values.dim() >= 1 &&
                  indices.size(1) == values.size(0) &&
                  indices.size(0) + values.dim() - 1 == static_cast<std::int64_t>(value.sizes.size()),
              "the tape has a sparse tensor whose parts do not fit");
  // Kernels trust the indices of a sparse tensor: the caller that makes one checks them.
  if (indices.numel() != 0) {
    const at::Tensor host = indices.to(at::kCPU), least = host.amin(1), most = host.amax(1);
    for (std::int64_t d = 0; d < indices.size(0); ++d) {
      TORCH_CHECK(
          least[d].item<std::int64_t>() >= 0 && most[d].item<std::int64_t>() < value.sizes[static_cast<std::size_t>(d)],
          "the tape has a sparse tensor with elements outside of it");
    }
  }
  at::Tensor t = at::detail::make_tensor<at::SparseTensorImpl>(
      c10::DispatchKeySet(c10::computeDispatchKey(values.scalar_type(), c10::kSparse, values.device())),
      values.dtype());
  auto* impl = static_cast<at::SparseTensorImpl*>(t.unsafeGetTensorImpl());
  impl->resize_(indices.size(0), values.dim() - 1, value.sizes);
  impl->set_indices_and_values_unsafe(indices, values);
  impl->set_coalesced(value.coalesced);
  return t;
}

c10::IValue TapeMemory::argument(const Value& value, const c10::Argument& argument,
                                 const std::vector<at::Generator>& generators) {
  if (value.kind == Value::kInt) check_enumeration(argument, value.number);
  if (retype_ && !as_recorded_ && value.kind == Value::kInt && is_dtype(argument)) {
    return static_cast<std::int64_t>(retype_->of(static_cast<c10::ScalarType>(value.number)));
  }
  // Only memory that a GPU is to read is worth pinning, and only such a torch can.
  if (value.kind == Value::kTrue && argument.name() == "pin_memory" && map_.elsewhere) return false;
  return argument_of(value, argument.type(), generators);
}

c10::IValue TapeMemory::argument_of(const Value& value, const c10::TypePtr& type,
                                    const std::vector<at::Generator>& generators) {
  switch (value.kind) {
    case Value::kNone:
      return {};
    case Value::kInt:
      return value.number;
    case Value::kDouble:
      return value.real;
    case Value::kFalse:
      return false;
    case Value::kTrue:
      return true;
    case Value::kComplex:
      return c10::complex<double>(value.real, value.imag);
    case Value::kString:
      return value.text;
    case Value::kDevice:
      return on_host_ ? c10::Device(at::kCPU) : map_.named(tape_, value.text);
    case Value::kGenerator:
      TORCH_CHECK(value.number >= 0 && static_cast<std::size_t>(value.number) < generators.size(),
                  "the tape names a generator that it did not set");
      return generators[static_cast<std::size_t>(value.number)];
    case Value::kTensor:
    case Value::kUndefined:
    case Value::kSparse:
      return tensor(value);
    case Value::kList:
      break;
  }
  const auto optional = type->cast<c10::OptionalType>();
  const auto list_type = (optional ? optional->getElementType() : type)->cast<c10::ListType>();
  TORCH_CHECK(list_type != nullptr, "the tape has a list where none belongs");
  c10::impl::GenericList list(list_type->getElementType());
  list.reserve(value.items.size());
  for (const Value& item : value.items) list.push_back(argument_of(item, list_type->getElementType(), generators));
  return list;
}

void TapeMemory::fill(std::size_t index) {
  const capture::Entry& entry = tape_.entries[index];
  const StorageId id = entry.number;
  const std::uint64_t offset = entry.offset;
  const std::string& bytes = entry.bytes;
  if (stand_ins_.erase(id) != 0) storages_[id] = blank(id);
  c10::Storage& into = storage(id);
  // A kernel that is not on the tape made it larger (a product with a matrix in CSR), and all of it is here.
  if (const capture::Storage& known = tape_.storages[id]; offset == 0 && bytes.size() == known.size_bytes &&
                                                          known.origin == capture::Storage::kProduced &&
                                                          into.nbytes() == 0)
    into = blank(id);
  if (retype_ && retype_->converts(id)) return retype_->fill(id, into, offset, bytes);
  TORCH_CHECK(offset <= into.nbytes() && bytes.size() <= into.nbytes() - offset, "the tape writes outside its memory");
  if (!bytes.empty() && into.device().is_cpu()) {
    std::memcpy(static_cast<char*>(into.mutable_data()) + offset, bytes.data(), bytes.size());
  } else if (!bytes.empty()) {
    bytes_in(into)
        .narrow(0, static_cast<std::int64_t>(offset), static_cast<std::int64_t>(bytes.size()))
        .copy_(bytes_at(bytes.data(), bytes.size()));
  }
  if (!retype_ && into.device().is_cpu() && observer_ != nullptr) observer_->filled(index, into);
}

std::string TapeMemory::bind_dense(const TensorRef& ref, const at::Tensor& t) {
  if (!t.defined() || t.layout() != c10::kStrided || !t.has_storage())
    return map_.elsewhere && !t.defined() ? bind_stand_in(ref, t) : "gave no dense tensor";
  if (t.scalar_type() != dtype_of(ref)) return map_.elsewhere ? bind_stand_in(ref, t) : "gave another dtype";
  if (t.sizes() != c10::IntArrayRef(ref.sizes)) return map_.elsewhere ? bind_stand_in(ref, t) : "gave another shape";
  if (t.strides() != c10::IntArrayRef(ref.strides)) {
    // Kernels for another dtype or device may lay out what they give in another way.
    return (retype_ && !as_recorded_) || map_.elsewhere ? bind_fresh(ref, t) : "gave another shape";
  }
  if (ref.storage == capture::kNoStorage) return "";
  if (ref.storage >= storages_.size()) return "gave what the tape does not name";
  c10::Storage& slot = storages_[ref.storage];
  if (map_.elsewhere && slot.unsafeGetStorageImpl() == nullptr && t.storage_offset() != ref.offset)
    return bind_fresh(ref, t);
  if (on_host_) {
    const auto [host, is_new] = hosts_.try_emplace(ref.storage, t.storage());
    return is_new || host->second.unsafeGetStorageImpl() == t.storage().unsafeGetStorageImpl()
               ? ""
               : "gave new memory where it gave a view";
  }
  if (as_recorded_ && retype_->converts(ref.storage)) {
    if (slot.unsafeGetStorageImpl() == nullptr) {
      slot = retype_->converted(ref.storage, t.storage());
    } else if (retype_->shadow(ref.storage, slot).unsafeGetStorageImpl() != t.storage().unsafeGetStorageImpl()) {
      return "gave new memory where it gave a view";
    }
  } else if (slot.unsafeGetStorageImpl() == nullptr) {
    slot = t.storage();
  } else if (slot.unsafeGetStorageImpl() != t.storage().unsafeGetStorageImpl()) {
    return "gave new memory where it gave a view";
  }
  return "";
}

std::string TapeMemory::bind_stand_in(const TensorRef& ref, const at::Tensor& t) {
  if (ref.storage >= storages_.size()) return "gave what the tape does not name";
  if (storages_[ref.storage].unsafeGetStorageImpl() != nullptr) return "gave another form of what was there";
  stand_ins_[ref.storage] = {ref, t};
  return "";
}

std::string TapeMemory::bind_fresh(const TensorRef& ref, const at::Tensor& t) {
  if (ref.storage >= storages_.size()) return "gave what the tape does not name";
  c10::Storage& slot = storages_[ref.storage];
  if (slot.unsafeGetStorageImpl() != nullptr) return "gave another shape";
  // What a tape says of strides is bounded by nothing but what its file can hold.
  double extent = static_cast<double>(ref.offset) + 1;
  for (std::size_t d = 0; d < ref.sizes.size(); ++d)
    extent += static_cast<double>(std::max<std::int64_t>(ref.sizes[d] - 1, 0)) * static_cast<double>(ref.strides[d]);
  if (extent > 16.0 * static_cast<double>(t.numel()) + 4096) return "gave another shape";
  const auto reach = static_cast<std::int64_t>(extent);
  auto size_bytes = static_cast<std::size_t>(reach) * t.element_size();
  // Other tensors may lie in it beside this one.
  const std::uint64_t all = tape_.storages[ref.storage].size_bytes;
  if (map_.elsewhere && all < 16 * static_cast<std::uint64_t>(size_bytes) + 4096)
    size_bytes = std::max(size_bytes, static_cast<std::size_t>(all));
  slot = new_storage_on(device_of(ref.storage), size_bytes, 0, nullptr);
  dense(ref).copy_(t);
  return "";
}

std::string TapeMemory::bind(const Value& value, const c10::IValue& result) {
  if (value.kind == Value::kTensor) {
    return result.isTensor() ? bind_dense(value.tensors.at(0), result.toTensor()) : "gave no tensor";
  }
  if (value.kind == Value::kSparse) {
    if (!result.isTensor() || !result.toTensor().is_sparse()) return "gave no sparse tensor";
    const auto* impl = static_cast<const at::SparseTensorImpl*>(result.toTensor().unsafeGetTensorImpl());
    const std::string reason = bind_dense(value.tensors.at(0), impl->indices());
    return reason.empty() ? bind_dense(value.tensors.at(1), impl->values()) : reason;
  }
  if (value.kind != Value::kList) return "";
  if (!result.isList() || result.toListRef().size() != value.items.size()) return "gave another number of results";
  for (std::size_t i = 0; i < value.items.size(); ++i) {
    if (std::string reason = bind(value.items[i], result.toListRef()[i]); !reason.empty()) return reason;
  }
  return "";
}

std::string TapeMemory::give(const Value& value, const c10::IValue& result) {
  if (value.kind == Value::kSparse) return "gave a sparse tensor";
  if (value.kind == Value::kList) {
    if (!result.isList() || result.toListRef().size() != value.items.size()) return "gave another number of results";
    for (std::size_t i = 0; i < value.items.size(); ++i) {
      if (std::string reason = give(value.items[i], result.toListRef()[i]); !reason.empty()) return reason;
    }
    return "";
  }
  if (value.kind != Value::kTensor) return "";
  const TensorRef& ref = value.tensors.at(0);
  if (!result.isTensor()) return "gave no tensor";
  const at::Tensor& t = result.toTensor();
  if (ref.storage >= storages_.size()) return "gave what the tape does not name";
  if (!t.defined() || t.sizes() != c10::IntArrayRef(ref.sizes)) return bind_stand_in(ref, t);
  if (storages_[ref.storage].unsafeGetStorageImpl() == nullptr) storages_[ref.storage] = blank(ref.storage);
  dense(ref).copy_(t);
  return "";
}

c10::IValue TapeMemory::given(const Value& value) {
  if (value.kind == Value::kInt) return value.number;
  if (value.kind == Value::kTensor || value.kind == Value::kSparse || value.kind == Value::kUndefined)
    return tensor(value);
  if (value.kind != Value::kList) return {};
  c10::List<at::Tensor> list;
  for (const Value& item : value.items) list.push_back(tensor(item));
  return list;
}

void TapeMemory::after_entry(std::size_t index) {
  for (const StorageId id : last_used_[index]) {
    storages_[id] = c10::Storage();
    stand_ins_.erase(id);
  }
}

}  // namespace finitude::replay
