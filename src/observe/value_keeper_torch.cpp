#include "observe/value_keeper_torch.h"

#include <c10/core/ScalarType.h>
#include <fnmatch.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "observe/device_memory_torch.h"

namespace finitude::observe {
namespace {

bool fits(const std::vector<std::string>& patterns, const std::string& name, std::string_view cut) {
  const std::string rest = name.substr(std::min(name.size(), cut.size()));
  return patterns.empty() || std::ranges::any_of(patterns, [&](const std::string& pattern) {
           return fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0 ||
                  fnmatch(pattern.c_str(), rest.c_str(), FNM_NOESCAPE) == 0;
         });
}

// "encoder" is the module and all that is in it; the class of the model may be named or not.
bool fits_module(const std::vector<std::string>& patterns, const std::string& name) {
  const std::string_view root = std::string_view(name).substr(0, name.find('.') + 1);  // empty without a dot
  const std::string rest = name.substr(root.size());
  return fits(patterns, name, root) || std::ranges::any_of(patterns, [&](const std::string& pattern) {
           return name.starts_with(pattern + ".") || rest.starts_with(pattern + ".");
         });
}

std::string row_major(const TensorView& v, std::size_t item) {
  std::string bytes(static_cast<std::size_t>(v.numel) * item, '\0');
  if (v.contiguous) {
    std::memcpy(bytes.data(), v.data, bytes.size());
    return bytes;
  }
  std::vector<std::int64_t> index(v.sizes.size(), 0);
  std::int64_t offset = 0;  // in elements
  for (std::size_t at = 0; at < bytes.size(); at += item) {
    std::memcpy(bytes.data() + at, v.data + offset * static_cast<std::int64_t>(item), item);
    for (std::size_t d = index.size(); d-- > 0;) {
      offset += v.strides[d];
      if (++index[d] < v.sizes[d]) break;
      offset -= v.sizes[d] * v.strides[d];
      index[d] = 0;
    }
  }
  return bytes;
}

}  // namespace

ValueKeeper& ValueKeeper::get() {
  static auto* keeper = new ValueKeeper();  // callbacks may outlive main
  return *keeper;
}

void ValueKeeper::start(KeptOperators operators) {
  const std::lock_guard guard(mutex_);
  room_ = operators.most_bytes;
  keeps_values_ = operators.most_bytes != 0;
  beyond_ = 0;
  operators_ = std::move(operators);
  calls_.clear();
  by_checksum_.clear();
  on_.store(true, std::memory_order_release);
}

record::KeptCalls ValueKeeper::stop(std::size_t* beyond) {
  on_ = false;
  const std::lock_guard guard(mutex_);
  *beyond = std::exchange(beyond_, 0);
  by_checksum_.clear();
  return std::exchange(calls_, {});
}

bool ValueKeeper::wants(const std::string& op, record::Phase phase) const {
  if (!on()) return false;
  const std::lock_guard guard(mutex_);
  return fits(operators_.ops, op, op.starts_with("aten::") ? "aten::" : "") &&
         (operators_.phases.empty() || std::ranges::find(operators_.phases, phase) != operators_.phases.end());
}

record::KeptValue ValueKeeper::look(const c10::TensorImpl& tensor, bool with_values) {
  TensorView v;
  return place_of(tensor, &v) && !v.batched ? look(v, tensor.dtype(), with_values) : record::KeptValue();
}

record::KeptValue ValueKeeper::look(TensorView v, caffe2::TypeMeta type, bool with_values) {
  record::KeptValue kept;
  HostBytes host;
  if (!type.isScalarType() || !host.read(&v)) return kept;
  kept.checksum = checksum(v);
  kept.scalar_type = static_cast<int>(type.toScalarType());
  if (with_values && keeps_values_ && v.numel != 0) kept.bytes = this->kept(*kept.checksum, v, type.itemsize());
  return kept;
}

// What one call gives the next one reads: such values are held once.
std::shared_ptr<const std::string> ValueKeeper::kept(std::uint64_t checksum, const TensorView& v, std::size_t item) {
  const std::size_t size = static_cast<std::size_t>(v.numel) * item;
  std::vector<std::shared_ptr<const std::string>> alike;
  {
    const std::lock_guard guard(mutex_);
    const auto [first, end] = by_checksum_.equal_range(checksum);
    for (auto at = first; at != end; ++at) {
      if (at->second->size() == size) alike.push_back(at->second);
    }
    if (alike.empty() && size > room_) {
      ++beyond_;
      return nullptr;
    }
  }
  auto bytes = std::make_shared<const std::string>(row_major(v, item));
  for (const auto& one : alike) {
    if (*one == *bytes) return one;
  }
  const std::lock_guard guard(mutex_);
  if (size > room_) {
    ++beyond_;
    return nullptr;
  }
  room_ -= size;
  by_checksum_.emplace(checksum, bytes);
  return bytes;
}

// With the mutex held.
void ValueKeeper::forget(std::uint64_t checksum, const std::shared_ptr<const std::string>& bytes) {
  const auto [first, end] = by_checksum_.equal_range(checksum);
  const auto found = std::find_if(first, end, [&](const auto& one) { return one.second == bytes; });
  if (found == end) return;
  room_ += bytes->size();
  by_checksum_.erase(found);
}

void ValueKeeper::put(const record::EventSink::Token& call, const std::string& module, record::KeptCall&& kept) {
  const std::lock_guard guard(mutex_);
  if (!on()) return;
  if (!fits_module(operators_.modules, module)) {
    for (auto* side : {&kept.inputs, &kept.outputs}) {
      for (record::KeptValue& value : *side) {
        if (value.bytes != nullptr && value.bytes.use_count() == 2) forget(*value.checksum, value.bytes);
      }
    }
    return;
  }
  if (call.generation != std::exchange(generation_, call.generation)) calls_.clear();
  calls_[call.op] = std::move(kept);
}

}  // namespace finitude::observe
