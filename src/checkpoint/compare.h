// Two checkpoints, tensor by tensor: what is only in one, and how far values of the same name differ.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace finitude::checkpoint {

struct Distance {
  std::uint64_t elements = 0;          // that differ; two NaN do not, nor do 0 and -0
  std::uint64_t non_finite = 0;        // of these, where one is finite and the other is not, or NaN and Inf meet
  double absolute = 0, relative = 0;   // largest, of finite ones; relative to the larger magnitude
  std::optional<std::uint64_t> ulps;   // largest; only of one floating point dtype
  std::optional<std::uint64_t> first;  // in row-major order
  double a = 0, b = 0;                 // the values there; the first part of a complex number that differs
};

struct Difference {
  enum class Kind : std::uint8_t {
    kOnlyA,
    kOnlyB,
    kShape,  // values are not compared
    kDType,  // values are compared all the same
    kValues,
    kPieces,  // the same tensor, cut otherwise: not compared
  };
  Kind kind;
  std::string name;
  const Tensor *a = nullptr, *b = nullptr;  // null where it is not there
  Distance distance;
};

struct Compared {
  Status status;                        // a failure: not all of it was compared
  std::vector<Difference> differences;  // in the order of A, then what is only in B
  std::uint64_t tensors = 0;            // in both
};

Compared compare(const Checkpoint& a, const Checkpoint& b);

}  // namespace finitude::checkpoint
