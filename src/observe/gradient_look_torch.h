// One look at a gradient as the optimizer is given it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>
#include <span>

namespace finitude::observe {

// What the last look at a gradient said. Valid while no further backward ran and identity and version still match.
struct GradMark {
  enum State : std::uint8_t { kUnseen, kClean, kInfinite, kNaN } state = kUnseen;
  bool is_unscaled = false;  // read after a GradScaler had unscaled it
  bool explained = false;    // that alarm names where it was born: it reports the loss that this came from
  const c10::TensorImpl* grad = nullptr;
  std::uint32_t version = 0;
  std::uint32_t reported =
      0;  // an alarm reported of it, here or at another optimizer of the same backward: its number, from 1
  double absmax = 0;
  double norm = -1;             // its 2-norm; negative: not known
  double bound = 0;             // of one that was clipped: the norm of all, which no element exceeds; 0: none
  std::int64_t first_bad = -1;  // of a contiguous gradient

  // Its values were not looked at: clipping has proved them finite, and absmax is the bound.
  bool is_unread() const { return bound > 0 && !(norm >= 0); }
};

// Were some of them clipped by a norm that proved them finite?
inline bool any_bound(std::span<const GradMark> marks) noexcept {
  for (const GradMark& mark : marks)
    if (mark.bound > 0) return true;
  return false;
}

// 0 where the tensor has none.
std::uint32_t version_of(const c10::TensorImpl& impl);

// The 2-norm of all of them. Negative: one was not read, or there is none. The norms of the parts are scaled by the
// largest one, so that it overflows only where float64 cannot hold it.
inline double norm_of_all(std::span<const GradMark> marks) noexcept {
  double largest = -1;
  for (const GradMark& mark : marks) {
    if (mark.grad == nullptr) continue;
    if (!(mark.norm >= 0)) return -1;
    if (mark.norm > largest) largest = mark.norm;
  }
  if (!(largest > 0) || std::isinf(largest)) return largest;
  double squares = 0;
  for (const GradMark& mark : marks) {
    if (mark.grad == nullptr) continue;
    const double part = mark.norm / largest;
    squares += part * part;
  }
  return largest * std::sqrt(squares);
}

// Reads the values, of a sparse gradient after coalescing. What cannot be read is taken for clean.
GradMark judge_gradient(const at::Tensor& gradient);

}  // namespace finitude::observe
