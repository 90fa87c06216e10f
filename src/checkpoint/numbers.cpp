#include "checkpoint/numbers.h"

#include <cstring>
#include <limits>

#include "sense/format.h"

namespace finitude::checkpoint {

Numbers::Numbers(const ElementType& type)
    : dtype_(type.dtype),
      bytes_(type.bytes),
      is_float_(type.dtype != sense::DType::kOther),
      is_signed_(type.name.starts_with("int") || type.name.starts_with("qint")) {
  if (!is_float_) return;
  const sense::DTypeInfo& info = sense::info(dtype_);
  bytes_ = info.size_bytes;
  reals_ = static_cast<std::size_t>(info.reals_per_element);
}

std::uint64_t Numbers::code(const char* at) const noexcept {
  std::uint64_t code = 0;
  std::memcpy(&code, at, bytes_);
  return code;
}

double Numbers::value(const char* at) const noexcept {
  const std::uint64_t bits = code(at);
  if (!is_float_) {
    if (!is_signed_) return static_cast<double>(bits);
    const int unused = 64 - 8 * static_cast<int>(bytes_);
    return static_cast<double>(static_cast<std::int64_t>(bits << unused) >> unused);
  }
  const sense::BitFormat format = sense::bit_format(dtype_);
  switch (sense::classify(bits, format)) {
    case sense::Kind::kNan:
      return std::numeric_limits<double>::quiet_NaN();
    case sense::Kind::kPosInf:
      return std::numeric_limits<double>::infinity();
    case sense::Kind::kNegInf:
      return -std::numeric_limits<double>::infinity();
    default:
      return sense::decode(bits, format);
  }
}

std::int64_t Numbers::rank(const char* at) const noexcept {
  const sense::BitFormat format = sense::bit_format(dtype_);
  const std::uint64_t bits = code(at);
  const auto magnitude = static_cast<std::int64_t>(bits & format.magnitude_mask());
  return (bits & format.sign_mask()) != 0 ? -magnitude : magnitude;
}

}  // namespace finitude::checkpoint
