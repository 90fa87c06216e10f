#include "replay/tape_retype_torch.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "base/checksum.h"

namespace finitude::replay {
namespace {

using c10::ScalarType;

bool is_real_or_complex(ScalarType dtype) { return c10::isFloatingType(dtype) || c10::isComplexType(dtype); }

std::uint64_t sum_of(const c10::Storage& storage) { return base::checksum(storage.data(), storage.nbytes()); }

at::Tensor numbers_in(const c10::Storage& storage, ScalarType unit) {
  const auto item = static_cast<std::int64_t>(c10::elementSize(unit));
  return at::from_blob(const_cast<void*>(storage.data()), {static_cast<std::int64_t>(storage.nbytes()) / item},
                       at::TensorOptions(unit));
}

c10::Storage as(ScalarType to, const c10::Storage& storage, ScalarType from) {
  return numbers_in(storage, from).to(to, /*non_blocking=*/false, /*copy=*/true).storage();
}

}  // namespace

Retype::Retype(const capture::Tape& tape, ScalarType target)
    : target_(target), units_(tape.storages.size(), ScalarType::Undefined) {
  std::vector<bool> mixed(units_.size(), false);
  const auto look = [&](const capture::TensorRef& t) {
    if (t.storage >= units_.size()) return;
    const auto dtype = static_cast<ScalarType>(t.dtype);
    ScalarType& unit = units_[t.storage];
    if (!is_real_or_complex(dtype)) {
      mixed[t.storage] = true;
      return;
    }
    const ScalarType own = c10::toRealValueType(dtype);
    if (!converts(dtype)) mixed[t.storage] = true;
    mixed[t.storage] = mixed[t.storage] || (unit != ScalarType::Undefined && unit != own);
    unit = own;
  };
  for (const capture::Entry& entry : tape.entries) {
    capture::for_each_tensor(entry.args, look);
    capture::for_each_tensor(entry.results, look);
  }
  for (const capture::Outcome& outcome : tape.outcomes) capture::for_each_tensor(outcome.value, look);
  for (std::size_t id = 0; id < units_.size(); ++id) {
    if (mixed[id] || units_[id] == target_) units_[id] = ScalarType::Undefined;
  }
}

bool Retype::converts(ScalarType recorded) const {
  return target_ == ScalarType::BFloat16 ? recorded == ScalarType::Half : is_real_or_complex(recorded);
}

ScalarType Retype::of(ScalarType recorded) const {
  if (!converts(recorded)) return recorded;
  if (c10::isComplexType(recorded)) return c10::toComplexType(target_);
  return c10::isFloatingType(recorded) ? target_ : recorded;
}

c10::Storage Retype::converted(capture::StorageId id, const c10::Storage& recorded) const {
  return as(target_, recorded, units_.at(id));
}

std::size_t Retype::converted_bytes(capture::StorageId id, std::size_t recorded_bytes) const {
  return recorded_bytes / c10::elementSize(units_.at(id)) * c10::elementSize(target_);
}

void Retype::fill(capture::StorageId id, c10::Storage& into, std::uint64_t offset, const std::string& bytes) const {
  const auto item = c10::elementSize(units_.at(id));
  TORCH_CHECK(offset % item == 0 && bytes.size() % item == 0, "the tape writes parts of numbers");
  const auto count = static_cast<std::int64_t>(bytes.size() / item);
  const at::Tensor numbers =
      at::from_blob(const_cast<char*>(bytes.data()), {count}, at::TensorOptions(units_.at(id))).to(target_);
  const std::uint64_t begin = offset / item * c10::elementSize(target_);
  TORCH_CHECK(begin <= into.nbytes() && numbers.nbytes() <= into.nbytes() - begin,
              "the tape writes outside its memory");
  std::memcpy(static_cast<char*>(into.mutable_data()) + begin, numbers.data_ptr(), numbers.nbytes());
}

c10::Storage Retype::shadow(capture::StorageId id, const c10::Storage& now) {
  const auto [found, is_new] = shadows_.try_emplace(id);
  if (is_new) {
    found->second.storage = as(units_.at(id), now, target_);
    found->second.sum = sum_of(found->second.storage);
  }
  return found->second.storage;
}

void Retype::end_shadows(std::vector<c10::Storage>& storages) {
  for (auto& [id, shadow] : shadows_) {
    if (sum_of(shadow.storage) == shadow.sum) continue;
    const c10::Storage changed = as(target_, shadow.storage, units_.at(id));
    std::memcpy(storages.at(id).mutable_data(), changed.data(), std::min(storages.at(id).nbytes(), changed.nbytes()));
  }
  shadows_.clear();
}

namespace {

c10::TypeKind real_kind_of(const c10::Argument& argument) {
  c10::TypePtr type = argument.real_type();
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type->kind();
}

}  // namespace

bool is_dtype(const c10::Argument& argument) { return real_kind_of(argument) == c10::TypeKind::ScalarTypeType; }

void check_enumeration(const c10::Argument& argument, std::int64_t number) {
  const auto below = [&](auto count) { return number >= 0 && number < static_cast<std::int64_t>(count); };
  switch (real_kind_of(argument)) {
    case c10::TypeKind::ScalarTypeType:
      TORCH_CHECK(below(256) && capture::item_bytes(static_cast<std::uint8_t>(number)) != 0,
                  "the tape names a dtype that there is not");
      break;
    case c10::TypeKind::LayoutType:
      TORCH_CHECK(below(c10::Layout::NumOptions), "the tape names a layout that there is not");
      break;
    case c10::TypeKind::MemoryFormatType:
      TORCH_CHECK(below(c10::MemoryFormat::NumOptions), "the tape names a memory format that there is not");
      break;
    default:
      break;
  }
}

}  // namespace finitude::replay
