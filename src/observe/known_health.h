// What a scan found in memory that nothing has written since, so that the next reader of it need not scan it again.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "finitude/scan.h"

namespace finitude::observe {

// Only sound memory is remembered: the caller that meets a non-finite value looks at it afresh. Any thread. A write
// that nobody reports (numpy, a kernel whose schema hides it) leaves a stale entry, so an op whose result is bad has to
// look again.
class KnownHealth {
 public:
  // A dense run of one storage. `data` too is part of its name: a storage may get new memory.
  struct Region {
    const void* storage = nullptr;  // its address must not be used again for as long as `generation` lasts
    const char* data = nullptr;
    std::int64_t begin = 0, end = 0;
    sense::DType dtype = sense::DType::kOther;
  };

  // A generation ends when storages may be gone: entries of another one are forgotten.
  bool find(std::uint64_t generation, const Region& region, sense::Health* health);
  void put(std::uint64_t generation, const Region& region, const sense::Health& health);
  // Bytes [begin, end) of the storage were written, or are being written.
  void written(const void* storage, std::int64_t begin, std::int64_t end);

 private:
  static constexpr std::size_t kPerStorage = 8;
  struct Entry {
    Region region;
    sense::Health health;
  };

  void enter(std::uint64_t generation);

  std::mutex mutex_;
  std::uint64_t generation_ = 0;
  std::unordered_map<const void*, std::vector<Entry>> entries_;
};

}  // namespace finitude::observe
