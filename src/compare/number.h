// What an element of a tensor is, decoded one at a time, and how far apart two of them are in units in the
// last place.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

#include "finitude/dtype.h"

namespace finitude::compare {

// The formats that are compared element by element. A complex tensor is its 2 * numel reals.
enum class Number : std::uint8_t {
  kFloat64,
  kFloat32,
  kFloat16,
  kBFloat16,
  kUInt8,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kBool,
  kOther
};

struct NumberInfo {
  std::string_view name;
  std::size_t size_bytes;  // 0 for kOther
  int mantissa_bits;       // stored ones; 0 for integers
  int min_exponent;        // of the smallest normal number, as in 1.m x 2^e
  int max_exponent;        // of the largest finite one
};
const NumberInfo& info(Number number) noexcept;
inline bool is_float(Number number) noexcept { return info(number).mantissa_bits != 0; }

struct Element {
  Number number = Number::kOther;
  int reals = 1;           // per element: 2 for complex
  std::string_view dtype;  // PyTorch's name: "complex64"
};
// By the number of a c10::ScalarType, and by PyTorch's name. kOther for what is not compared by element.
Element element_of_scalar_type(std::uint8_t scalar_type) noexcept;
Element element_of_name(std::string_view dtype) noexcept;
// Distance from 1 to the next larger number: 2^-mantissa_bits; 0 for integers.
double epsilon(Number number) noexcept;
// Of two formats the one with fewer mantissa bits; an integer is finer than any float.
Number coarser(Number a, Number b) noexcept;

// Element `index` of contiguous memory. Integers of 64 bits beyond 2^53 are rounded.
double decode(const char* data, Number number, std::uint64_t index) noexcept;

// The place of `value`, rounded to nearest even in that float format, on the line of its numbers: neighbours
// differ by 1, both zeros are 0, negative numbers are below. Beyond the largest finite number: infinity's
// place, one step further. Not for NaN.
std::int64_t place(double value, Number number) noexcept;

// Steps between two numbers of a float format, after rounding both to it. 0 for equal infinities.
// kNotComparable where either is NaN, or one is an infinity and the other is not the same.
inline constexpr std::uint64_t kNotComparable = std::numeric_limits<std::uint64_t>::max();
std::uint64_t ulps(double a, double b, Number number) noexcept;

}  // namespace finitude::compare
