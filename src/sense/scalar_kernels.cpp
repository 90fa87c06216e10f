// The kernels without SIMD.
#include <cstring>
#include <type_traits>

#include "sense/format.h"
#include "sense/kernels.h"

namespace finitude::sense {
namespace {

template <typename U>
U load(const unsigned char* bytes, std::size_t index) noexcept {
  U code;
  std::memcpy(&code, bytes + index * sizeof(U), sizeof code);
  return code;
}

template <typename U, bool kFnuz = false>
std::uint64_t quick(const void* data, std::size_t n, std::uint64_t stop) noexcept {
  const auto* bytes = static_cast<const unsigned char*>(data);
  constexpr U kSign = static_cast<U>(U{1} << (8 * sizeof(U) - 1));
  U most = 0;
  for (std::size_t i = 0; i < n;) {
    for (const std::size_t end = n - i < kBlock ? n : i + kBlock; i < end; ++i) {
      const U code = load<U>(bytes, i);
      const U rank = kFnuz && code == kSign ? kSign : static_cast<U>(code & static_cast<U>(kSign - 1));
      most = rank > most ? rank : most;
    }
    if (most >= stop) break;
  }
  return most;
}

template <typename U, const BitFormat& kFormat>
void full(const void* data, std::size_t n, RawTotals& totals) noexcept {
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < n; ++i) {
    const U code = load<U>(bytes, i);
    const std::uint64_t magnitude = code & kFormat.magnitude_mask();
    if (magnitude >= kFormat.first_non_finite()) {
      ++totals.non_finite;
      totals.pos_inf += code == kFormat.exponent_mask();
      totals.neg_inf += code == (kFormat.exponent_mask() | kFormat.sign_mask());
      continue;
    }
    const auto as_signed = static_cast<std::int64_t>(static_cast<std::make_signed_t<U>>(code));
    totals.umax = code > totals.umax ? code : totals.umax;
    totals.smax = as_signed > totals.smax ? as_signed : totals.smax;
    totals.least_magnitude = magnitude < totals.least_magnitude ? magnitude : totals.least_magnitude;
    totals.zero += magnitude == 0;
    totals.tiny += (code & kFormat.exponent_mask()) == 0;
    const double value = decode(code, kFormat);
    totals.sum_sq += value * value;
  }
}

template <typename U, const BitFormat& kFormat>
std::uint64_t norm(const void* data, std::size_t n, std::uint64_t stop, double* sum_sq) noexcept {
  const std::uint64_t most = quick<U>(data, n, stop);
  if (most >= stop) return most;
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double value = decode(load<U>(static_cast<const unsigned char*>(data), i), kFormat);
    sum += value * value;
  }
  *sum_sq = sum;
  return most;
}

constexpr Kernels kScalar{
    "scalar",
    quick<std::uint64_t>,
    quick<std::uint32_t>,
    quick<std::uint16_t>,
    quick<std::uint8_t>,
    quick<std::uint8_t, true>,
    full<std::uint64_t, kFloat64Format>,
    full<std::uint32_t, kFloat32Format>,
    full<std::uint16_t, kFloat16Format>,
    full<std::uint16_t, kBFloat16Format>,
    norm<std::uint64_t, kFloat64Format>,
    norm<std::uint32_t, kFloat32Format>,
    norm<std::uint16_t, kFloat16Format>,
    norm<std::uint16_t, kBFloat16Format>,
};

}  // namespace

const Kernels& scalar_kernels() noexcept { return kScalar; }

}  // namespace finitude::sense
