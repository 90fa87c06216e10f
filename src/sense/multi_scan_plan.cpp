#include "sense/multi_scan_plan.h"

namespace finitude::sense::multi {
namespace {

// 64 TiB. A list makes room for twice its chunks and counts them in 32 bits; a launch has less than 2^31 blocks.
constexpr std::uint64_t kMostChunks = std::uint64_t{1} << 30;

}  // namespace

bool make_item(const finitude_cuda_tensor& tensor, Item* item) noexcept {
  *item = Item{};
  item->slot = kNone;
  if (tensor.ahead != 0) {
    item->format = kFormats;
    item->slot = tensor.ahead - 1;
    return true;
  }
  if (tensor.dtype > static_cast<std::uint32_t>(DType::kOther)) return false;
  const auto dtype = static_cast<DType>(tensor.dtype);
  const std::uint32_t format = format_of(dtype);
  item->address = reinterpret_cast<std::uintptr_t>(tensor.data);
  item->format = format;
  if (format == kFormats || tensor.numel == 0) return true;
  const auto size = static_cast<std::uint64_t>(layout_of(format).bits / 8);
  constexpr std::uint64_t kMost = std::uint64_t{1}
                                  << 48;  // more than any device has; keeps the products below in range
  if (tensor.data == nullptr || item->address % size != 0 || tensor.numel > kMost) return false;
  item->bytes = tensor.numel * reals_of(dtype) * size;
  const std::uint64_t chunks = chunks_of(item->address, item->bytes);
  if (chunks >= kMostChunks) return false;
  item->chunks = static_cast<std::uint32_t>(chunks);
  return true;
}

bool Plan::is_same(const finitude_cuda_tensor* tensors, std::uint32_t count) const noexcept {
  if (count != given_.size()) return false;
  for (std::uint32_t i = 0; i < count; ++i) {
    const finitude_cuda_tensor &a = given_[i], &b = tensors[i];
    if (a.ahead != b.ahead) return false;
    if (a.ahead == 0 && (a.data != b.data || a.numel != b.numel || a.dtype != b.dtype)) return false;
  }
  return true;
}

Plan::Change Plan::update(const finitude_cuda_tensor* tensors, std::uint32_t count) {
  if (is_same(tensors, count)) return Change::kNone;
  std::vector<Item> items(count);
  std::uint64_t chunks = 0;
  std::uint32_t filled = 0, slots = 0;
  bool same_chunks = count == items_.size();
  for (std::uint32_t i = 0; i < count; ++i) {
    if (!make_item(tensors[i], &items[i])) return Change::kInvalid;
    items[i].first_chunk = static_cast<std::uint32_t>(chunks);
    chunks += items[i].chunks;
    if (chunks >= kMostChunks) return Change::kInvalid;
    filled += items[i].chunks != 0;
    slots = items[i].slot != kNone && items[i].slot >= slots ? items[i].slot + 1 : slots;
    same_chunks = same_chunks && items[i].chunks == items_[i].chunks;
  }
  given_.assign(tensors, tensors + count);
  items_ = std::move(items);
  filled_ = filled;
  slots_ = slots;
  if (same_chunks) return Change::kItems;
  owners_.resize(static_cast<std::size_t>(chunks));
  for (std::uint32_t i = 0; i < count; ++i) {
    for (std::uint32_t c = 0; c < items_[i].chunks; ++c) owners_[items_[i].first_chunk + c] = i;
  }
  return Change::kAll;
}

std::uint64_t make_ahead(const finitude_cuda_tensor* tensors, std::uint32_t count, Item* items) noexcept {
  if (count == 0 || count > FINITUDE_CUDA_AHEAD) return 0;
  std::uint64_t chunks = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    finitude_cuda_tensor tensor = tensors[i];
    tensor.ahead = 0;
    if (tensors[i].ahead == 0 || !make_item(tensor, &items[i]) || items[i].chunks == 0) return 0;
    items[i].slot = tensors[i].ahead - 1;
    items[i].first_chunk = static_cast<std::uint32_t>(chunks);
    chunks += items[i].chunks;
    if (chunks >= kMostChunks) return 0;
  }
  return chunks;
}

std::uint64_t chunks_ahead(std::uint64_t bytes) noexcept {
  const std::uint64_t chunks =
      bytes / kChunkBytes + 2 * std::uint64_t{FINITUDE_CUDA_AHEAD};  // each tensor may touch two more
  return chunks < kMostChunks ? chunks : kMostChunks;
}

Tickets::Place Tickets::next(bool of_list, bool capturing) noexcept {
  Place place;
  place.captured = capturing;
  if (capturing) {
    if (captured_ == FINITUDE_CUDA_CAPTURED) return place;
    place.slot = FINITUDE_CUDA_RING + captured_;
    place.row = FINITUDE_CUDA_ROWS;
    place.ticket = kCaptured | ++captured_;
    return place;
  }
  place.ticket = ++last_;
  place.slot = static_cast<std::uint32_t>(place.ticket % FINITUDE_CUDA_RING);
  scan_of_[place.slot] = of_list ? ++scans_ : 0;
  place.row = static_cast<std::uint32_t>(scans_ % FINITUDE_CUDA_ROWS);
  return place;
}

std::uint32_t Tickets::slot_of(std::uint64_t ticket) const noexcept {
  if ((ticket & kCaptured) != 0) {
    const std::uint64_t index = ticket & ~kCaptured;
    return index == 0 || index > captured_ ? kNone : static_cast<std::uint32_t>(FINITUDE_CUDA_RING + index - 1);
  }
  if (ticket == 0 || ticket > last_ || last_ - ticket >= FINITUDE_CUDA_RING) return kNone;
  return static_cast<std::uint32_t>(ticket % FINITUDE_CUDA_RING);
}

std::uint32_t Tickets::row_of(std::uint64_t ticket) const noexcept {
  const std::uint32_t slot = slot_of(ticket);
  if (slot == kNone) return kNone;
  if (slot >= FINITUDE_CUDA_RING) return FINITUDE_CUDA_ROWS;
  const std::uint64_t scan = scan_of_[slot];
  if (scan == 0 || scans_ - scan >= FINITUDE_CUDA_ROWS) return kNone;
  return static_cast<std::uint32_t>(scan % FINITUDE_CUDA_ROWS);
}

void Tickets::forget_rows() noexcept { scan_of_.fill(0); }

}  // namespace finitude::sense::multi
