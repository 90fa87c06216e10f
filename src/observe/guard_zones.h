// Memory with guard zones: bytes before and after each block, and those of blocks that were given back, have a pattern.
// Where it is gone, somebody wrote out of bounds, or after the memory was given back.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "record/guard_damage.h"

namespace finitude::observe {

using record::GuardDamage;

// Any thread. Every call takes a lock.
class GuardZones {
 public:
  static constexpr std::size_t kZone = 512;                              // bytes before and after each block
  static constexpr std::size_t kMostQuarantine = std::size_t{64} << 20;  // bytes of blocks that were given back
  static constexpr std::size_t kMostDamages = 16;

  GuardZones() = default;
  ~GuardZones();
  GuardZones(const GuardZones&) = delete;
  GuardZones& operator=(const GuardZones&) = delete;

  // Aligned to 64. Null where there is no memory. `op`: the op that is open, or kNone.
  void* take(std::size_t size_bytes, record::OpId op) noexcept;
  // False: it is no block of this. It is checked, filled with the pattern and kept a while, so that a later write
  // shows.
  bool give(void* block, record::OpId op) noexcept;
  // Looks at all zones, and at blocks that were given back, the last ones first, up to kMostLook bytes. Takes as long
  // as reading them.
  void check(record::OpId op, bool at_end) noexcept;

  std::vector<GuardDamage> damages() const;

 private:
  static constexpr std::size_t kMostLook = std::size_t{4} << 20;
  struct Block {
    std::size_t size_bytes = 0;
    record::OpId made_in = record::kNone, freed_in = record::kNone;
    bool is_damaged = false;  // and reported
  };
  void check_zones(char* block, Block& info, record::OpId op, bool at_end);
  void check_freed(char* block, Block& info, record::OpId op, bool at_end);
  void report(char* block, Block& info, GuardDamage::Where where, std::int64_t from, std::int64_t to, record::OpId op,
              bool at_end);

  mutable std::mutex mutex_;  // guards all below
  std::map<char*, Block> blocks_, freed_;
  std::deque<char*> quarantine_;  // the oldest first
  std::size_t quarantine_bytes_ = 0;
  std::vector<GuardDamage> damages_;
};

}  // namespace finitude::observe
