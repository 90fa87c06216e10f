// Memory for copies that are thrown away after a moment. Fresh pages cost several times what copying into them does.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

namespace finitude::observe {

// Any thread. Blocks that are given back are kept for the next taker, up to kMostSpare bytes in all.
class SpareBlocks {
 public:
  static constexpr std::size_t kMostSpare = std::size_t{128} << 20;

  SpareBlocks() = default;
  ~SpareBlocks() { clear(); }
  SpareBlocks(const SpareBlocks&) = delete;
  SpareBlocks& operator=(const SpareBlocks&) = delete;

  // At least `bytes`, aligned to 64; null where there is no memory. To be given back with the same number of bytes.
  void* take(std::size_t bytes) noexcept;
  void give(void* block, std::size_t bytes) noexcept;
  void clear() noexcept;
  std::size_t spare_bytes() const noexcept;

 private:
  static constexpr int kClasses = 48;  // by powers of two
  mutable std::mutex mutex_;
  std::vector<void*> spare_[kClasses];
  std::size_t bytes_ = 0;
};

}  // namespace finitude::observe
