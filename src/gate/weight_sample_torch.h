// What one step changes in a parameter, by a few of its elements: they are copied before the step and compared at the
// next one. For dense tensors on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace finitude::bindings {

struct WeightSample {
  static constexpr std::uint32_t kMost = 32;
  std::uint32_t parameter = 0;  // its index
  std::uint32_t count = 0;      // 0: its values cannot be read
  std::array<float, kMost> values{};
};

// Elements at four places that lie evenly, in order; all of a small tensor.
WeightSample sample_weight(std::uint32_t index, const at::Tensor& parameter) noexcept;
// The root mean square of what the elements have changed by, over that of the elements before. Negative: none has
// changed, or it is another tensor now.
float update_ratio(const WeightSample& before, const at::Tensor& parameter) noexcept;

// The share of zeros, and of subnormal numbers, among at most 1024 elements of a gradient. Negative: not known.
struct SmallShares {
  float zeros = -1, subnormals = -1;
};
SmallShares small_shares(const at::Tensor& gradient) noexcept;

}  // namespace finitude::bindings
