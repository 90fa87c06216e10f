#include "replay/rounding_noise_torch.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace finitude::replay {
namespace {

constexpr double kExact = 16;  // whole numbers up to here are counts, masks and factors: no rounding made them

bool gives_views(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(
      schema.returns(), [](const c10::Argument& a) { return a.alias_info() != nullptr && !a.alias_info()->isWrite(); });
}

}  // namespace

void RoundingNoise::disturb(const at::Tensor& result, std::size_t salt) const {
  const at::Tensor place = at::arange(result.numel(), at::kLong).reshape(result.sizes());
  const at::Tensor up =
      at::bitwise_right_shift((place + static_cast<std::int64_t>(salt)).mul(2654435761LL), 13).bitwise_and(1);
  const at::Tensor factor = up.to(at::kFloat).mul(2).sub(1).mul(epsilon_of(result) * 0.75).add(1);
  const at::Tensor now = result.to(at::kFloat);
  const at::Tensor exact = at::logical_and(now.eq(now.round()), now.abs().le(kExact));
  result.copy_(at::where(exact, now, now * factor));
}

bool RoundingNoise::after(const PlayedCall& call) {
  const double coarsest = before_.coarsest();
  if (!gives_views(call.schema)) {
    std::size_t salt = call.index * 40503 + static_cast<std::size_t>(pattern_) * 97;
    for (const at::Tensor& t : reported_by(call)) {
      const bool plain = t.is_floating_point() && t.layout() == c10::kStrided && t.is_non_overlapping_and_dense();
      if (plain && t.element_size() > 1 && epsilon_of(t) == coarsest) disturb(t, ++salt);
    }
  }
  before_.note_noise(call);
  return true;
}

}  // namespace finitude::replay
