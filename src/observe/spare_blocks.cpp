#include "observe/spare_blocks.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

namespace finitude::observe {
namespace {

int class_of(std::size_t bytes) noexcept { return std::bit_width(std::max<std::size_t>(bytes, 64) - 1); }

}  // namespace

void* SpareBlocks::take(std::size_t bytes) noexcept {
  const int c = class_of(bytes);
  if (c >= kClasses) return nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!spare_[c].empty()) {
      void* block = spare_[c].back();
      spare_[c].pop_back();
      bytes_ -= std::size_t{1} << c;
      return block;
    }
  }
  return std::aligned_alloc(64, std::size_t{1} << c);
}

void SpareBlocks::give(void* block, std::size_t bytes) noexcept {
  const int c = class_of(bytes);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (bytes_ + (std::size_t{1} << c) <= kMostSpare) {
      try {
        spare_[c].push_back(block);
        bytes_ += std::size_t{1} << c;
        return;
      } catch (...) {  // no memory even for the list
      }
    }
  }
  std::free(block);
}

void SpareBlocks::clear() noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& blocks : spare_) {
    for (void* block : blocks) std::free(block);
    blocks.clear();
    blocks.shrink_to_fit();
  }
  bytes_ = 0;
}

std::size_t SpareBlocks::spare_bytes() const noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  return bytes_;
}

}  // namespace finitude::observe
