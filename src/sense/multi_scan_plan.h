// The host's side of a scan of many tensors: the table that the device reads, and which results are still known.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "finitude/cuda_scan.h"
#include "sense/multi_scan.h"

namespace finitude::sense::multi {

// The table of a list of tensors. Built once; a list that did not change costs the comparison.
class Plan {
 public:
  enum class Change : std::uint8_t {
    kNone,
    kItems,  // addresses only: the chunks belong to the same tensors as before
    kAll,
    kInvalid,  // nothing was changed: an unknown dtype, or an address that is not a multiple of the element's size
  };

  bool is_same(const finitude_cuda_tensor* tensors, std::uint32_t count) const noexcept;
  Change update(const finitude_cuda_tensor* tensors, std::uint32_t count);

  const std::vector<Item>& items() const noexcept { return items_; }
  const std::vector<std::uint32_t>& owners() const noexcept { return owners_; }  // the tensor of each chunk
  std::uint32_t tensors() const noexcept { return static_cast<std::uint32_t>(items_.size()); }
  std::uint32_t chunks() const noexcept { return static_cast<std::uint32_t>(owners_.size()); }
  std::uint32_t filled() const noexcept { return filled_; }  // tensors with at least one chunk
  std::uint32_t slots() const noexcept {
    return slots_;
  }  // 1 + the largest slot of a tensor that was read ahead; 0: there is none

 private:
  std::vector<finitude_cuda_tensor> given_;
  std::vector<Item> items_;
  std::vector<std::uint32_t> owners_;
  std::uint32_t filled_ = 0, slots_ = 0;
};

// False where `tensor` is none that can be scanned. A dtype without special values becomes an empty item.
bool make_item(const finitude_cuda_tensor& tensor, Item* item) noexcept;

// The items of a call that reads ahead, and how many chunks they have together; 0 where they are none that can be read
// so.
std::uint64_t make_ahead(const finitude_cuda_tensor* tensors, std::uint32_t count, Item* items) noexcept;
// The most chunks that tensors of so many bytes together can have in such a call.
std::uint64_t chunks_ahead(std::uint64_t bytes) noexcept;

// Which slot of the ring of summaries, and which row of tensors' results, each scan writes.
class Tickets {
 public:
  static constexpr std::uint64_t kCaptured = std::uint64_t{1} << 63;
  static constexpr std::uint32_t kSlots = FINITUDE_CUDA_RING + FINITUDE_CUDA_CAPTURED;
  static constexpr std::uint32_t kRows = FINITUDE_CUDA_ROWS + 1;  // the last one is that of captured scans

  struct Place {
    std::uint64_t ticket = 0;  // 0: no slot is left for a captured scan
    std::uint32_t slot = 0, row = 0;
    bool captured = false;
  };

  // `of_list`: a scan of the list, which writes a row. One of a single value has none.
  Place next(bool of_list, bool capturing) noexcept;
  // Slot of a ticket; kNone where it was never given out or its slot has been given to another one.
  std::uint32_t slot_of(std::uint64_t ticket) const noexcept;
  // Row of a ticket; kNone where later scans wrote over it or it has none.
  std::uint32_t row_of(std::uint64_t ticket) const noexcept;
  // Rows were thrown away (the list outgrew its memory).
  void forget_rows() noexcept;
  // A graph holds addresses of the list's memory: it may not move any more.
  bool has_captured() const noexcept { return captured_ != 0; }

 private:
  std::uint64_t last_ = 0, scans_ = 0;
  std::uint32_t captured_ = 0;
  std::array<std::uint64_t, FINITUDE_CUDA_RING> scan_of_{};  // 0: no scan of the list
};

}  // namespace finitude::sense::multi
