// Numbers as bytes: what the tape is written in. Little-endian; variable-length integers are LEB128, signed
// ones zigzag.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace finitude::capture {

class WireWriter {
 public:
  explicit WireWriter(std::string* bytes) : bytes_(*bytes) {}

  void u8(std::uint8_t value) { bytes_.push_back(static_cast<char>(value)); }
  void u64(std::uint64_t value) {
    for (int i = 0; i < 8; ++i) u8(static_cast<std::uint8_t>(value >> (8 * i)));
  }
  void var(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) u8(static_cast<std::uint8_t>(value) | 0x80);
    u8(static_cast<std::uint8_t>(value));
  }
  void zigzag(std::int64_t value) {
    var((static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63));
  }
  void f64(double value) { u64(std::bit_cast<std::uint64_t>(value)); }
  void raw(const void* data, std::size_t size_bytes) { bytes_.append(static_cast<const char*>(data), size_bytes); }
  void text(std::string_view value) {
    var(value.size());
    raw(value.data(), value.size());
  }

 private:
  std::string& bytes_;
};

// Never reads beyond its bytes: once something does not fit, ok() is false and every later value is zero or
// empty.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : bytes_(bytes) {}

  bool ok() const { return ok_; }
  bool at_end() const { return bytes_.empty(); }
  std::size_t left() const { return bytes_.size(); }
  void fail() {
    ok_ = false;
    bytes_ = {};
  }

  std::uint8_t u8() {
    if (bytes_.empty()) {
      fail();
      return 0;
    }
    const auto value = static_cast<std::uint8_t>(bytes_.front());
    bytes_.remove_prefix(1);
    return value;
  }
  std::uint64_t u64() {
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value |= static_cast<std::uint64_t>(u8()) << (8 * i);
    return ok_ ? value : 0;
  }
  std::uint64_t var() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const std::uint8_t byte = u8();
      if (shift == 63 && byte > 1) break;
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    fail();
    return 0;
  }
  // At most `most`; more is a failure.
  std::uint64_t var(std::uint64_t most) {
    const std::uint64_t value = var();
    if (value <= most) return value;
    fail();
    return 0;
  }
  // Of things that take at least one byte each, and memory of their own: more than the bytes left, or
  // millions in all, is a failure, so nobody allocates for them.
  std::size_t count() {
    const std::uint64_t value = var(bytes_.size());
    if (value > things_left_) {
      fail();
      return 0;
    }
    things_left_ -= value;
    return static_cast<std::size_t>(value);
  }
  std::int64_t zigzag() {
    const std::uint64_t value = var();
    return static_cast<std::int64_t>((value >> 1) ^ (~(value & 1) + 1));
  }
  double f64() { return std::bit_cast<double>(u64()); }
  std::string_view raw(std::uint64_t size_bytes) {
    if (size_bytes > bytes_.size()) {
      fail();
      return {};
    }
    const std::string_view part = bytes_.substr(0, static_cast<std::size_t>(size_bytes));
    bytes_.remove_prefix(part.size());
    return part;
  }
  std::string_view text() { return raw(var()); }

 private:
  std::string_view bytes_;
  std::uint64_t things_left_ = std::uint64_t{1} << 22;
  bool ok_ = true;
};

}  // namespace finitude::capture
