#include "gate/weight_sample_torch.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <cstring>

#include "observe/tensor_view_torch.h"
#include "pyhost/tensor_subclass_torch.h"

namespace finitude::bindings {
namespace {

constexpr std::int64_t kPlaces = 4;
constexpr std::int64_t kAtEach = 256;  // elements of a gradient at each place

bool dense_view(const at::Tensor& tensor, observe::TensorView* v) noexcept {
  return tensor.defined() && observe::view_of(*local_of(tensor).unsafeGetTensorImpl(), v) && v->contiguous &&
         v->numel > 0;
}

template <typename T>
float value_at(const char* data, std::int64_t index) noexcept {
  T value;
  std::memcpy(&value, data + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return static_cast<float>(value);
}

// Calls visit(first element, elements) for each place: `each` elements, or all where there are not more.
template <typename Visit>
void for_each_place(std::int64_t numel, std::int64_t each, Visit&& visit) {
  if (numel <= kPlaces * each) return visit(std::int64_t{0}, numel);
  for (std::int64_t place = 0; place < kPlaces; ++place) visit((numel - each) / (kPlaces - 1) * place, each);
}

template <typename T>
void copy_values(const observe::TensorView& v, WeightSample* sample) noexcept {
  for_each_place(v.numel, WeightSample::kMost / kPlaces, [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t i = first; i < first + count; ++i) sample->values[sample->count++] = value_at<T>(v.data, i);
  });
}

}  // namespace

WeightSample sample_weight(std::uint32_t index, const at::Tensor& parameter) noexcept {
  WeightSample sample;
  sample.parameter = index;
  observe::TensorView v;
  if (!dense_view(parameter, &v)) return sample;
  if (v.dtype == sense::DType::kFloat32) copy_values<float>(v, &sample);
  if (v.dtype == sense::DType::kFloat64) copy_values<double>(v, &sample);
  if (v.dtype == sense::DType::kFloat16) copy_values<c10::Half>(v, &sample);
  if (v.dtype == sense::DType::kBFloat16) copy_values<c10::BFloat16>(v, &sample);
  return sample;
}

float update_ratio(const WeightSample& before, const at::Tensor& parameter) noexcept {
  const WeightSample now = sample_weight(before.parameter, parameter);
  if (now.count == 0 || now.count != before.count) return -1;
  double changed = 0, was = 0;
  for (std::uint32_t i = 0; i < now.count; ++i) {
    const double value = static_cast<double>(before.values[i]), by = static_cast<double>(now.values[i]) - value;
    changed += by * by;
    was += value * value;
  }
  const double ratio = std::sqrt(changed / was);  // NaN and Inf where all were zero
  return changed > 0 && std::isfinite(ratio) ? static_cast<float>(ratio) : -1.0f;
}

SmallShares small_shares(const at::Tensor& gradient) noexcept {
  observe::TensorView v;
  if (!dense_view(gradient, &v) || v.dtype == sense::DType::kOther) return {};
  const auto itemsize = static_cast<std::int64_t>(gradient.itemsize());
  sense::Health all;
  for_each_place(v.numel, kAtEach, [&](std::int64_t first, std::int64_t count) {
    all = sense::merge(all, sense::full_scan(v.data + first * itemsize, static_cast<std::size_t>(count), v.dtype));
  });
  if (all.numel == 0) return {};
  const auto share = [&](std::uint64_t some) {
    return static_cast<float>(static_cast<double>(some) / static_cast<double>(all.numel));
  };
  return {share(all.zero), share(all.subnormal)};
}

}  // namespace finitude::bindings
