#include "sense/exponents.h"

#include <algorithm>
#include <array>

#include "sense/format.h"
#include "sense/load_code.h"

namespace finitude::sense {
namespace {

// Of the smallest magnitude that the format has.
constexpr int smallest(const BitFormat& format) { return 1 - format.bias - format.mantissa_bits; }

// Of a finite magnitude other than 0, counted from that of the smallest.
constexpr int steps_above_smallest(std::uint64_t magnitude, const BitFormat& format) {
  const int exponent = static_cast<int>(magnitude >> format.mantissa_bits);
  return exponent == 0 ? std::bit_width(magnitude) - 1 : exponent - 1 + format.mantissa_bits;
}

constexpr std::size_t kMost = 2098;  // of float64, which has the most
static_assert(steps_above_smallest(kFloat64Format.first_non_finite() - 1, kFloat64Format) + 1 == kMost);

}  // namespace

Exponents count_exponents(const void* data, std::size_t numel, DType dtype) {
  const BitFormat format = bit_format(dtype);
  if (format.bits == 0) return {};
  std::array<std::uint64_t, kMost> all{};
  const auto* bytes = static_cast<const unsigned char*>(data);
  const std::size_t reals = numel * static_cast<std::size_t>(info(dtype).reals_per_element);
  for (std::size_t i = 0; i < reals; ++i) {
    const std::uint64_t code = load_code(bytes + i * static_cast<std::size_t>(format.bits / 8), format.bits);
    const std::uint64_t magnitude = code & format.magnitude_mask();
    if (magnitude == 0 || magnitude >= format.first_non_finite()) continue;
    ++all[static_cast<std::size_t>(steps_above_smallest(magnitude, format))];
  }
  const auto is_some = [](std::uint64_t n) { return n != 0; };
  const auto begin = std::find_if(all.begin(), all.end(), is_some);
  if (begin == all.end()) return {};
  const auto end = std::find_if(all.rbegin(), all.rend(), is_some).base();
  return {smallest(format) + static_cast<int>(begin - all.begin()), {begin, end}};
}

}  // namespace finitude::sense
