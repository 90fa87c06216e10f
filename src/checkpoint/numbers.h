// Elements of any dtype as numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "checkpoint/checkpoint.h"

namespace finitude::checkpoint {

// How the reals of an element are read. A complex element has two of them.
class Numbers {
 public:
  explicit Numbers(const ElementType& type);

  std::size_t bytes() const noexcept { return bytes_; }  // of one real
  std::size_t reals() const noexcept { return reals_; }  // of one element
  bool is_float() const noexcept { return is_float_; }
  // Exact but for integers beyond 2^53.
  double value(const char* at) const noexcept;
  // Finite values in their order; neighbours differ by 1. Of floating point dtypes only.
  std::int64_t rank(const char* at) const noexcept;

 private:
  std::uint64_t code(const char* at) const noexcept;

  sense::DType dtype_;
  std::size_t bytes_, reals_ = 1;
  bool is_float_, is_signed_;
};

}  // namespace finitude::checkpoint
