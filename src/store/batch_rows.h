// Of which rows of a data set the micro-batches of one step are made: as bytes, on their way from the thread that
// trains to the file. Plain data.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace finitude::store {

inline constexpr std::size_t kMostIds = 4096;  // of a micro-batch; those after them are only counted

// A micro-batch. ids: as in the file, see append_id.
struct BatchRows {
  std::uint32_t dataset = 0;  // its number
  std::uint32_t epoch = 0;    // how often a loader of that data set was iterated before
  std::int32_t worker = -1;   // that made it; -1: the process itself, or not known
  std::uint32_t count = 0;    // of its rows, also of those without ids
  std::span<const std::byte> ids;
};

// An id is the difference to the one before (0 before the first), as a zigzag varint: seven bits a byte, the lowest
// first, the highest bit of a byte says that another one follows.
inline void append_id(std::int64_t id, std::int64_t before, std::vector<std::byte>* bytes) {
  const std::uint64_t difference = static_cast<std::uint64_t>(id) - static_cast<std::uint64_t>(before);
  std::uint64_t rest = (difference << 1) ^ (0 - (difference >> 63));
  for (; rest >= 0x80; rest >>= 7) bytes->push_back(static_cast<std::byte>(rest | 0x80));
  bytes->push_back(static_cast<std::byte>(rest));
}

// The micro-batches of a step, one behind the other. Memory is kept from step to step.
class RowsWriter {
 public:
  void clear() { bytes_.clear(); }
  // One without rows is of a batch that is not known: it only has its place in the order.
  void add(const BatchRows& batch) {
    const std::size_t begin = bytes_.size();
    const std::uint32_t head[] = {batch.dataset, batch.epoch, static_cast<std::uint32_t>(batch.worker), batch.count,
                                  static_cast<std::uint32_t>(batch.ids.size())};
    static_assert(sizeof head == kHead);
    bytes_.resize(begin + kHead + batch.ids.size());
    std::memcpy(bytes_.data() + begin, head, kHead);
    std::ranges::copy(batch.ids, bytes_.begin() + static_cast<std::ptrdiff_t>(begin + kHead));
  }
  std::span<const std::byte> bytes() const { return bytes_; }

  // Takes the first micro-batch off the bytes that a RowsWriter made. False: there is none.
  static bool take(std::span<const std::byte>* bytes, BatchRows* batch) {
    std::uint32_t head[kHead / sizeof(std::uint32_t)];
    if (bytes->size() < kHead) return false;
    std::memcpy(head, bytes->data(), kHead);
    if (bytes->size() - kHead < head[4]) return false;
    *batch = {head[0], head[1], static_cast<std::int32_t>(head[2]), head[3], bytes->subspan(kHead, head[4])};
    *bytes = bytes->subspan(kHead + head[4]);
    return true;
  }

 private:
  static constexpr std::size_t kHead = 5 * sizeof(std::uint32_t);
  std::vector<std::byte> bytes_;
};

}  // namespace finitude::store
