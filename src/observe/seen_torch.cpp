#include "observe/seen_torch.h"

#include <c10/util/accumulate.h>

#include <cmath>
#include <cstring>

#include "observe/device_memory_torch.h"
#include "observe/effort.h"
#include "observe/tensor_view_torch.h"
#include "observe/value_keeper_torch.h"

namespace finitude::observe {
namespace {

void find_bad_rows(const TensorView& v, std::int64_t item_bytes, bool nan_only, std::size_t most,
                   record::TensorUse* use) {
  if (v.contiguous)
    use->first_bad =
        static_cast<std::int64_t>(sense::first_non_finite(v.data, static_cast<std::size_t>(v.numel), v.dtype));
  const std::int64_t rows = v.sizes.empty() ? 0 : v.sizes[0];
  const std::int64_t row = rows > 0 ? v.numel / rows : 0;
  const auto health_of_row = [&](std::int64_t i) {
    return sense::full_scan_strided(v.data + i * v.strides[0] * item_bytes, v.sizes.data() + 1, v.strides.data() + 1,
                                    static_cast<int>(v.sizes.size()) - 1, v.dtype);
  };
  for (std::int64_t i = 0; i < rows && rows > 1 && use->bad_rows.size() < most; ++i) {
    if (!v.contiguous) {
      const sense::Health health = health_of_row(i);
      if (nan_only ? health.nan != 0 : !health.ok()) use->bad_rows.push_back(i);
      continue;
    }
    const char* data = v.data + i * row * item_bytes;
    const auto size = static_cast<std::size_t>(row);
    if (!sense::quick_scan(data, size, v.dtype).bad) continue;
    if (!nan_only || sense::full_scan(data, size, v.dtype).nan != 0) use->bad_rows.push_back(i);
  }
}

}  // namespace

record::SeenTensor Eye::see(const c10::TensorImpl& impl, Look look, bool* from_memory) {
  record::SeenTensor seen;
  record::TensorUse& use = seen.use;
  TensorView v;
  if (!place_of(impl, &v)) return seen;
  const auto item_bytes = static_cast<std::int64_t>(impl.itemsize());
  seen.memory = v.storage;
  use.begin = v.begin;
  use.end = v.end;
  use.dtype = v.dtype;
  use.shape.assign(v.sizes.begin(), v.sizes.end());
  use.dense = v.numel * item_bytes == v.end - v.begin;
  use.requires_grad = impl.requires_grad();
  if (look == Look::kNo && !v.contiguous) use.strides.assign(v.strides.begin(), v.strides.end());
  if (look != Look::kNo && v.dtype != sense::DType::kOther) {
    // Whatever the order of its dimensions, a view that fills its span holds the same values.
    const KnownHealth::Region region{v.storage, v.data, v.begin, v.end, v.dtype};
    const bool one_region = use.dense && generation_ != 0;
    if (look == Look::kKnown && one_region && known_.find(generation_, region, &use.health)) {
      if (from_memory != nullptr) *from_memory = true;
    } else if (HostBytes host; host.read(&v)) {
      use.health = full(v);
      count(&effort().read_bytes, v.numel * item_bytes);
      // Kernels fill what an op inside of them has allocated: an earlier look at it is void.
      if (look == Look::kFresh && generation_ != 0) known_.written(v.storage, v.begin, v.end);
      if (one_region) known_.put(generation_, region, use.health);
      if (!use.health.ok()) find_bad_rows(v, item_bytes, after_infinities_ && use.health.nan != 0, most_rows_, &use);
    }
  }
  if (impl.is_wrapped_number() && !v.on_device) {
    seen.constant = true;
    if (impl.dtype() == caffe2::TypeMeta::Make<std::int64_t>()) {  // a Python int: its value is evidence
      std::int64_t value;
      std::memcpy(&value, v.data, sizeof value);
      use.health.numel = 1;
      use.health.zero = value == 0;
      use.health.min = use.health.max = static_cast<double>(value);
      use.health.absmax = std::fabs(use.health.min);
    }
  }
  return seen;
}

TensorView Written::view() const {
  TensorView v;
  v.storage = elsewhere;
  v.data = data;
  v.begin = input.use.begin;
  v.end = input.use.end;
  v.dtype = dtype;
  v.sizes = sizes;
  v.strides = strides;
  v.numel = c10::multiply_integers(sizes);
  v.on_device = elsewhere != nullptr;
  v.contiguous = true;
  std::int64_t next = 1;
  for (std::size_t d = sizes.size(); d-- > 0; next *= sizes[d]) v.contiguous &= sizes[d] == 1 || strides[d] == next;
  return v;
}

sense::Health Written::health_now() const noexcept {
  count(&effort().read_bytes, input.use.end - input.use.begin);
  TensorView v = view();
  HostBytes host;
  return host.read(&v)
             ? sense::full_scan_strided(v.data, sizes.data(), strides.data(), static_cast<int>(sizes.size()), dtype)
             : sense::Health();
}

record::KeptValue Written::kept_now(bool with_values) const {
  return ValueKeeper::get().look(view(), type, with_values);
}

KnownHealth::Region Written::region() const noexcept {
  return {input.memory, data, input.use.begin, input.use.end, dtype};
}

Written written_by(const c10::TensorImpl& impl, const record::SeenTensor& seen) {
  TensorView v;
  place_of(impl, &v);
  return {seen,
          v.data,
          v.on_device ? v.storage : nullptr,
          {v.sizes.begin(), v.sizes.end()},
          {v.strides.begin(), v.strides.end()},
          v.dtype,
          impl.dtype()};
}

}  // namespace finitude::observe
