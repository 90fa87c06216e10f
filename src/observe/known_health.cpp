#include "observe/known_health.h"

#include <algorithm>

namespace finitude::observe {

void KnownHealth::enter(std::uint64_t generation) {
  if (generation == generation_) return;
  generation_ = generation;
  entries_.clear();
}

bool KnownHealth::find(std::uint64_t generation, const Region& region, sense::Health* health) {
  std::lock_guard<std::mutex> lock(mutex_);
  enter(generation);
  const auto it = entries_.find(region.storage);
  if (it == entries_.end()) return false;
  for (const Entry& e : it->second) {
    const Region& r = e.region;
    if (r.begin == region.begin && r.end == region.end && r.data == region.data && r.dtype == region.dtype) {
      *health = e.health;
      return true;
    }
  }
  return false;
}

void KnownHealth::put(std::uint64_t generation, const Region& region, const sense::Health& health) {
  if (!health.ok()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  enter(generation);
  std::vector<Entry>& of_storage = entries_[region.storage];
  std::erase_if(of_storage,
                [&](const Entry& e) { return e.region.begin == region.begin && e.region.end == region.end; });
  if (of_storage.size() >= kPerStorage) of_storage.erase(of_storage.begin());
  of_storage.push_back({region, health});
}

void KnownHealth::written(const void* storage, std::int64_t begin, std::int64_t end) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = entries_.find(storage);
  if (it == entries_.end()) return;
  std::erase_if(it->second, [&](const Entry& e) { return e.region.begin < end && begin < e.region.end; });
}

}  // namespace finitude::observe
