#include "observe/guard_zones.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace finitude::observe {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr unsigned char kZonePattern = 0xA5;   // finite and small as a float of any size
constexpr unsigned char kFreedPattern = 0xFF;  // NaN as a float of any size, -1 as an integer

// The first of [from, to) that has not the pattern, and one past the last; equal: all have it.
struct Changed {
  const char *first, *end;
};
Changed changed(const char* from, const char* to, unsigned char pattern) {
  const auto differs = [&](char byte) { return static_cast<unsigned char>(byte) != pattern; };
  // Each byte is the next one's, and the first has the pattern: memcmp is many times faster than a loop.
  if (from == to || (!differs(*from) && std::memcmp(from, from + 1, static_cast<std::size_t>(to - from) - 1) == 0))
    return {to, to};
  const char* const first = std::find_if(from, to, differs);
  const char* end = to;
  while (end != first && !differs(end[-1])) --end;
  return {first, end};
}

}  // namespace

GuardZones::~GuardZones() {
  for (const auto* list : {&blocks_, &freed_}) {
    for (const auto& [block, info] : *list) std::free(block - kZone);
  }
}

void* GuardZones::take(std::size_t size_bytes, record::OpId op) noexcept try {
  static_assert(kZone % kAlignment == 0);
  void* base = nullptr;
  if (size_bytes > SIZE_MAX - 2 * kZone || posix_memalign(&base, kAlignment, size_bytes + 2 * kZone) != 0)
    return nullptr;
  char* const block = static_cast<char*>(base) + kZone;
  std::memset(base, kZonePattern, kZone);
  std::memset(block + size_bytes, kZonePattern, kZone);
  std::lock_guard<std::mutex> lock(mutex_);
  blocks_[block] = {size_bytes, op, record::kNone, false};
  return block;
} catch (...) {
  return nullptr;
}

bool GuardZones::give(void* given, record::OpId op) noexcept try {
  char* const block = static_cast<char*>(given);
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = blocks_.find(block);
  if (it == blocks_.end()) return false;
  Block info = it->second;
  check_zones(block, info, op, false);
  info.freed_in = op;
  blocks_.erase(it);
  std::memset(block, kFreedPattern, info.size_bytes);
  freed_[block] = info;
  quarantine_.push_back(block);
  quarantine_bytes_ += info.size_bytes + 2 * kZone;
  while (quarantine_bytes_ > kMostQuarantine) {
    char* const oldest = quarantine_.front();
    Block& gone = freed_.at(oldest);
    check_freed(oldest, gone, op, false);
    check_zones(oldest, gone, op, false);
    quarantine_.pop_front();
    quarantine_bytes_ -= gone.size_bytes + 2 * kZone;
    freed_.erase(oldest);
    std::free(oldest - kZone);
  }
  return true;
} catch (...) {  // it stays where it is
  return true;
}

void GuardZones::check(record::OpId op, bool at_end) noexcept try {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [block, info] : blocks_) check_zones(block, info, op, at_end);
  std::size_t looked = 0;
  for (auto it = quarantine_.rbegin(); it != quarantine_.rend() && looked < kMostLook; ++it) {
    Block& info = freed_.at(*it);
    looked += info.size_bytes;
    if (looked > kMostLook && info.size_bytes > kMostLook) continue;
    check_freed(*it, info, op, at_end);
    check_zones(*it, info, op, at_end);
  }
} catch (...) {
}

std::vector<GuardDamage> GuardZones::damages() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return damages_;
}

void GuardZones::check_zones(char* block, Block& info, record::OpId op, bool at_end) {
  if (info.is_damaged) return;
  char* const end = block + info.size_bytes;
  if (const Changed after = changed(end, end + kZone, kZonePattern); after.first != after.end)
    report(block, info, GuardDamage::kAfter, after.first - block, after.end - block, op, at_end);
  else if (const Changed before = changed(block - kZone, block, kZonePattern); before.first != before.end)
    report(block, info, GuardDamage::kBefore, before.first - block, before.end - block, op, at_end);
}

void GuardZones::check_freed(char* block, Block& info, record::OpId op, bool at_end) {
  if (info.is_damaged) return;
  if (const Changed inside = changed(block, block + info.size_bytes, kFreedPattern); inside.first != inside.end)
    report(block, info, GuardDamage::kFreed, inside.first - block, inside.end - block, op, at_end);
}

void GuardZones::report(char* block, Block& info, GuardDamage::Where where, std::int64_t from, std::int64_t to,
                        record::OpId op, bool at_end) {
  info.is_damaged = true;
  if (damages_.size() >= kMostDamages) return;
  damages_.push_back({where, reinterpret_cast<std::uint64_t>(block), info.size_bytes, from, to, info.made_in,
                      info.freed_in, op, at_end});
}

}  // namespace finitude::observe
