#include "locate/neighbours.h"

#include <algorithm>

namespace finitude::locate {
namespace {

using record::kNone;
using record::Op;
using record::OpId;
using record::Storage;
using record::StorageId;

// Of one storage, by ops of the trace; kNone: no such op.
struct Uses {
  OpId first = kNone, last_before = kNone, next = kNone;  // before and after the moment
  bool made = false;                                      // the first use gave it
};

std::vector<Uses> uses_of(const record::Trace& trace, OpId at) {
  std::vector<Uses> uses(trace.storages.size());
  const auto see = [&](OpId id, const record::TensorUse& use, bool is_output) {
    if (use.storage >= uses.size()) return;
    Uses& of = uses[use.storage];
    if (of.first == kNone) of.first = id, of.made = is_output;
    if (id < at)
      of.last_before = id;
    else if (of.next == kNone)
      of.next = id;
  };
  for (OpId id = 0; id < trace.ops.size(); ++id) {
    for (const auto& use : trace.ops[id].inputs) see(id, use, false);
    for (const auto& use : trace.ops[id].outputs) see(id, use, true);
  }
  return uses;
}

bool is_of_run(record::Origin origin) {
  return origin == record::Origin::kParameter || origin == record::Origin::kBuffer ||
         origin == record::Origin::kOptimizerState;
}

class Surroundings {
 public:
  Surroundings(const record::Trace& trace, OpId at) : trace_(trace), at_(at), uses_(uses_of(trace, at)) {}

  Around run(StorageId storage, std::uint64_t first, std::uint64_t end) {
    Around around{first, end, {}, {}, {}};
    const Storage& changed = trace_.storages[storage];
    const std::uint64_t changed_end = end_of(changed);
    for (StorageId id = 0; id < trace_.storages.size(); ++id) {
      const Storage& other = trace_.storages[id];
      if (id == storage || other.address == 0 || other.size_bytes <= 0 || !is_there_by_then(id)) continue;
      if (other.address < end && first < end_of(other))
        around.same.push_back(owner(id, 0));
      else if (end_of(other) <= changed.address)
        take(&around.before, id, changed.address - end_of(other));
      else if (changed_end <= other.address)
        take(&around.after, id, other.address - changed_end);
    }
    const auto later = [](const Owner& a, const Owner& b) { return order(a) > order(b); };
    std::ranges::stable_sort(around.same, later);
    if (around.same.size() > kMostSame) around.same.resize(kMostSame);
    for (Owner& one : around.same) one.life = life_of(one.storage);
    return around;
  }

 private:
  static std::uint64_t end_of(const Storage& storage) {
    return storage.address + static_cast<std::uint64_t>(storage.size_bytes);
  }
  // Those of which no op is known come last.
  static std::uint64_t order(const Owner& owner) { return owner.last_used == kNone ? 0 : owner.last_used + 1ull; }

  bool is_there_by_then(StorageId id) const {
    const Uses& uses = uses_[id];
    return uses.last_before != kNone || !uses.made;
  }

  // Has another storage had some of its memory since it was last used?
  bool is_taken_over(StorageId id) const {
    const Storage& mine = trace_.storages[id];
    for (StorageId other = 0; other < trace_.storages.size(); ++other) {
      const Storage& its = trace_.storages[other];
      const Uses& uses = uses_[other];
      if (other == id || !uses.made || uses.first >= at_ || its.address == 0) continue;
      const bool is_later = uses_[id].last_before != kNone && uses.first > uses_[id].last_before;
      if (is_later && its.address < end_of(mine) && mine.address < end_of(its)) return true;
    }
    return false;
  }

  Life life_of(StorageId id) const {
    const Storage& storage = trace_.storages[id];
    if (storage.freed_before != kNone && storage.freed_before <= at_) return Life::kGivenBack;
    if (uses_[id].next != kNone || is_of_run(storage.origin)) return Life::kInUse;
    if (std::ranges::find(trace_.freed_asked_at, at_) != trace_.freed_asked_at.end()) return Life::kInUse;
    return is_taken_over(id) ? Life::kGivenBack : Life::kNotKnown;
  }

  // Its life is asked for later: that takes time.
  Owner owner(StorageId id, std::int64_t gap) const {
    const Uses& uses = uses_[id];
    return {id, gap, uses.made ? uses.first : kNone, uses.last_before};
  }

  void take(std::optional<Owner>* place, StorageId id, std::uint64_t gap) const {
    if (gap > static_cast<std::uint64_t>(kMostGap)) return;
    Owner owner = this->owner(id, static_cast<std::int64_t>(gap));
    owner.life = life_of(id);
    const auto is_gone = [](const Owner& of) { return of.life == Life::kGivenBack; };
    const bool is_nearer = !*place || (is_gone(owner) != is_gone(**place) ? is_gone(**place)
                                       : owner.gap != (*place)->gap       ? owner.gap < (*place)->gap
                                                                          : order(owner) > order(**place));
    if (is_nearer) *place = owner;
  }

  const record::Trace& trace_;
  const OpId at_;
  const std::vector<Uses> uses_;
};

}  // namespace

std::optional<Around> memory_around(const record::Trace& trace, StorageId storage, std::int64_t begin, std::int64_t end,
                                    OpId at) {
  if (storage >= trace.storages.size() || begin < 0 || end <= begin) return std::nullopt;
  const Storage& changed = trace.storages[storage];
  if (changed.address == 0) return std::nullopt;
  return Surroundings(trace, at).run(storage, changed.address + static_cast<std::uint64_t>(begin),
                                     changed.address + static_cast<std::uint64_t>(end));
}

}  // namespace finitude::locate
