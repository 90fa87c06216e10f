// What tracing has read and copied, so that its price can be reported in bytes.
#pragma once

#include <atomic>
#include <cstdint>

namespace finitude::observe {

// Totals of this process since it began; bytes of tensors. Any thread; a reader may see them a little apart.
struct Effort {
  std::atomic<std::uint64_t> ops{0}, read_bytes{0}, copied_bytes{0};
};

inline Effort& effort() {
  static Effort total;
  return total;
}

inline void count(std::atomic<std::uint64_t>* total, std::int64_t more) noexcept {
  total->fetch_add(static_cast<std::uint64_t>(more), std::memory_order_relaxed);
}

}  // namespace finitude::observe
