#include "capture/inflate.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace finitude::capture {
namespace {

constexpr int kMaxLength = 15;               // bits of a code
constexpr std::uint64_t kMostRatio = 1032;   // bytes from one byte: a match of 258 bytes takes two bits or more
constexpr std::size_t kLengthSymbols = 288;  // of literals, the end of a block and lengths
constexpr std::size_t kDistanceSymbols = 30;
constexpr std::size_t kEndOfBlock = 256;

// A number with extra bits that follow it in the stream.
struct Range {
  std::uint16_t base;
  std::uint8_t extra;
};
constexpr std::array<Range, 29> kLengths{{{3, 0},   {4, 0},   {5, 0},   {6, 0},   {7, 0},  {8, 0},  {9, 0},  {10, 0},
                                          {11, 1},  {13, 1},  {15, 1},  {17, 1},  {19, 2}, {23, 2}, {27, 2}, {31, 2},
                                          {35, 3},  {43, 3},  {51, 3},  {59, 3},  {67, 4}, {83, 4}, {99, 4}, {115, 4},
                                          {131, 5}, {163, 5}, {195, 5}, {227, 5}, {258, 0}}};
constexpr std::array<Range, kDistanceSymbols> kDistances{
    {{1, 0},     {2, 0},     {3, 0},     {4, 0},      {5, 1},      {7, 1},     {9, 2},     {13, 2},
     {17, 3},    {25, 3},    {33, 4},    {49, 4},     {65, 5},     {97, 5},    {129, 6},   {193, 6},
     {257, 7},   {385, 7},   {513, 8},   {769, 8},    {1025, 9},   {1537, 9},  {2049, 10}, {3073, 10},
     {4097, 11}, {6145, 11}, {8193, 12}, {12289, 12}, {16385, 13}, {24577, 13}}};

// The stream, least significant bit first. Bits beyond its end are zero; once one was taken, ok() is false.
class Bits {
 public:
  explicit Bits(std::string_view bytes) : bytes_(bytes) {}

  bool ok() const { return ok_; }
  std::uint32_t peek(int count) {
    while (held_ < count && !bytes_.empty()) {
      buffer_ |= std::uint64_t{static_cast<unsigned char>(bytes_.front())} << held_;
      held_ += 8;
      bytes_.remove_prefix(1);
    }
    return static_cast<std::uint32_t>(buffer_ & ((std::uint64_t{1} << count) - 1));
  }
  void skip(int count) {
    ok_ = ok_ && count <= held_;
    buffer_ >>= count;
    held_ = std::max(held_ - count, 0);
  }
  std::uint32_t take(int count) {
    const std::uint32_t value = peek(count);
    skip(count);
    return value;
  }
  // `count` whole bytes from the next byte boundary on; empty, and not ok(), where there are not so many.
  std::string_view take_bytes(std::size_t count) {
    skip(held_ % 8);
    std::size_t buffered = static_cast<std::size_t>(held_) / 8;
    bytes_ = {bytes_.data() - buffered, bytes_.size() + buffered};
    buffer_ = 0;
    held_ = 0;
    ok_ = ok_ && count <= bytes_.size();
    if (!ok_) return {};
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }

 private:
  std::string_view bytes_;
  std::uint64_t buffer_ = 0;
  int held_ = 0;  // bits in buffer_
  bool ok_ = true;
};

// A canonical Huffman code as a table by the next bits of the stream.
class Code {
 public:
  // lengths: bits of each symbol's code, 0: the symbol does not occur. False: no such code exists.
  bool build(std::span<const std::uint8_t> lengths) {
    std::array<std::uint32_t, kMaxLength + 1> count{}, next{};
    for (const std::uint8_t length : lengths) ++count[length];
    count[0] = 0;
    bits_ = 1;
    std::uint32_t first = 0;
    for (int length = 1; length <= kMaxLength; ++length) {
      first = (first + count[length - 1]) << 1;
      next[length] = first;
      if (first + count[length] > std::uint32_t{1} << length) return false;  // more codes than there are
      if (count[length] != 0) bits_ = length;
    }
    table_.assign(std::size_t{1} << bits_, Entry{});
    for (std::size_t symbol = 0; symbol < lengths.size(); ++symbol) {
      const int length = lengths[symbol];
      if (length == 0) continue;
      const std::size_t code = reversed(next[length]++, length);
      for (std::size_t at = code; at < table_.size(); at += std::size_t{1} << length)
        table_[at] = {static_cast<std::uint16_t>(symbol), static_cast<std::uint8_t>(length)};
    }
    return true;
  }

  // The next symbol; -1: no code begins with these bits.
  int next(Bits& bits) const {
    const Entry entry = table_[bits.peek(bits_)];
    if (entry.length == 0) return -1;
    bits.skip(entry.length);
    return entry.symbol;
  }

 private:
  struct Entry {
    std::uint16_t symbol = 0;
    std::uint8_t length = 0;  // 0: of no code
  };

  static std::size_t reversed(std::uint32_t code, int length) {
    std::size_t result = 0;
    for (int i = 0; i < length; ++i) result |= std::size_t{code >> i & 1} << (length - 1 - i);
    return result;
  }

  std::vector<Entry> table_;
  int bits_ = 1;  // of the longest code
};

// The codes of literals and lengths, and of distances.
struct Codes {
  Code lengths, distances;

  bool set_fixed() {
    std::array<std::uint8_t, kLengthSymbols> of_lengths{};
    std::fill(of_lengths.begin(), of_lengths.end(), std::uint8_t{8});
    std::fill(of_lengths.begin() + 144, of_lengths.begin() + 256, std::uint8_t{9});
    std::fill(of_lengths.begin() + 256, of_lengths.begin() + 280, std::uint8_t{7});
    std::array<std::uint8_t, kDistanceSymbols> of_distances{};
    of_distances.fill(5);
    return lengths.build(of_lengths) && distances.build(of_distances);
  }

  bool read(Bits& bits) {
    static constexpr std::array<std::uint8_t, 19> kOrder{16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                                         11, 4,  12, 3, 13, 2, 14, 1, 15};
    const std::size_t length_count = bits.take(5) + 257, distance_count = bits.take(5) + 1;
    const std::size_t order_count = bits.take(4) + 4;
    if (length_count > kLengthSymbols - 2 || distance_count > kDistanceSymbols) return false;
    std::array<std::uint8_t, kOrder.size()> of_lengths{};
    for (std::size_t i = 0; i < order_count; ++i) of_lengths[kOrder[i]] = static_cast<std::uint8_t>(bits.take(3));
    Code code;
    if (!code.build(of_lengths)) return false;
    std::array<std::uint8_t, kLengthSymbols + kDistanceSymbols> all{};
    const std::size_t needed = length_count + distance_count;
    for (std::size_t at = 0; at < needed;) {
      const int symbol = code.next(bits);
      if (symbol < 0 || !bits.ok()) return false;
      if (symbol < 16) {
        all[at++] = static_cast<std::uint8_t>(symbol);
        continue;
      }
      if (symbol == 16 && at == 0) return false;
      const std::uint8_t repeated = symbol == 16 ? all[at - 1] : 0;
      const std::size_t times = symbol == 16 ? 3 + bits.take(2) : symbol == 17 ? 3 + bits.take(3) : 11 + bits.take(7);
      if (times > needed - at) return false;
      std::fill_n(all.begin() + static_cast<std::ptrdiff_t>(at), times, repeated);
      at += times;
    }
    const std::span<const std::uint8_t> both(all.data(), needed);
    return both[kEndOfBlock] != 0 && lengths.build(both.first(length_count)) &&
           distances.build(both.subspan(length_count));
  }
};

// The output: a buffer of the announced size that is filled from its beginning.
class Output {
 public:
  Output(char* bytes, std::size_t size_bytes) : bytes_(bytes), size_(size_bytes) {}

  bool is_full() const { return used_ == size_; }
  bool put(int byte) {
    if (is_full()) return false;
    bytes_[used_++] = static_cast<char>(byte);
    return true;
  }
  bool put(std::string_view part) {
    if (part.size() > size_ - used_) return false;
    if (!part.empty()) std::memcpy(bytes_ + used_, part.data(), part.size());
    used_ += part.size();
    return true;
  }
  // What lies `distance` bytes back, which may overlap with what is written.
  bool repeat(std::size_t distance, std::size_t length) {
    if (distance > used_ || length > size_ - used_) return false;
    for (std::size_t end = used_ + length; used_ < end; ++used_) bytes_[used_] = bytes_[used_ - distance];
    return true;
  }

 private:
  char* bytes_;
  std::size_t size_, used_ = 0;
};

bool inflate_stored(Bits& bits, Output& out) {
  const std::string_view header = bits.take_bytes(4);
  if (header.size() != 4) return false;
  const auto byte = [&](std::size_t i) { return std::size_t{static_cast<unsigned char>(header[i])}; };
  const std::size_t length = byte(0) | byte(1) << 8, complement = byte(2) | byte(3) << 8;
  return (length ^ complement) == 0xffff && out.put(bits.take_bytes(length)) && bits.ok();
}

bool inflate_coded(Bits& bits, const Codes& codes, Output& out) {
  while (bits.ok()) {
    const int symbol = codes.lengths.next(bits);
    if (symbol < 0) return false;
    if (symbol == int{kEndOfBlock}) return bits.ok();
    if (symbol < int{kEndOfBlock}) {
      if (!out.put(symbol)) return false;
      continue;
    }
    const auto number = static_cast<std::size_t>(symbol) - kEndOfBlock - 1;
    if (number >= kLengths.size()) return false;
    const std::size_t length = kLengths[number].base + bits.take(kLengths[number].extra);
    const int far = codes.distances.next(bits);
    if (far < 0) return false;
    const Range range = kDistances[static_cast<std::size_t>(far)];
    if (!out.repeat(range.base + bits.take(range.extra), length)) return false;
  }
  return false;
}

bool inflate_blocks(Bits& bits, Output& out) {
  Codes codes;
  for (bool is_last = false; !is_last;) {
    is_last = bits.take(1) != 0;
    switch (bits.take(2)) {
      case 0:
        if (!inflate_stored(bits, out)) return false;
        break;
      case 1:
        if (!codes.set_fixed() || !inflate_coded(bits, codes, out)) return false;
        break;
      case 2:
        if (!codes.read(bits) || !inflate_coded(bits, codes, out)) return false;
        break;
      default:
        return false;
    }
  }
  return bits.ok();
}

}  // namespace

Status inflate(std::string_view deflated, std::uint64_t size_bytes, std::string* bytes) {
  const Status damaged(StatusCode::kCorrupt, "is damaged: its compressed data is not sound");
  // Before memory is taken for it.
  if (size_bytes / kMostRatio > deflated.size()) return damaged;
  bytes->resize(static_cast<std::size_t>(size_bytes));
  Bits bits(deflated);
  Output out(bytes->data(), bytes->size());
  return inflate_blocks(bits, out) && out.is_full() ? Status() : damaged;
}

}  // namespace finitude::capture
