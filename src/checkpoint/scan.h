// Reads the values of a checkpoint once, window by window, and says which tensors hold what cannot be.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace finitude::checkpoint {

// Of one tensor. Elements, and of a complex dtype reals.
struct TensorHealth {
  std::uint64_t nan = 0, pos_inf = 0, neg_inf = 0;
  std::optional<std::uint64_t> first;  // NaN or Inf: the first in row-major order
  // Of tensors that cannot be negative.
  std::uint64_t negative = 0;
  std::optional<std::uint64_t> first_negative;
  double least = 0;

  bool is_bad() const noexcept { return first.has_value() || first_negative.has_value(); }
};

struct Scanned {
  Status status;                      // a failure: not all of it could be read, and the rest counts as it is
  std::vector<TensorHealth> tensors;  // as in the checkpoint
  std::uint64_t bytes = 0;            // that were read
  std::uint64_t skipped = 0;          // tensors of dtypes without NaN and Inf
  bool is_exact = true;               // false: a tensor maps its elements onto each other too often to count them all
};

inline constexpr std::size_t kWindow = std::size_t{1} << 18;  // bytes that a thread holds

// Bytes that a scan will read.
std::uint64_t bytes_to_scan(const Checkpoint& checkpoint);

// progress: called now and then from one of the threads, never from two at once, with the bytes read so far; or null.
Scanned scan(const Checkpoint& checkpoint, unsigned threads, const std::function<void(std::uint64_t)>& progress);

}  // namespace finitude::checkpoint
