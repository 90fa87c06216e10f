#include "observe/stream_order.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace finitude::observe {
namespace {

constexpr std::size_t kMostUses = 256;       // that are kept of one memory
constexpr std::size_t kMostReturned = 4096;  // uses of memory that was given back
constexpr std::size_t kMostRaces = 64;

bool overlap(std::uint64_t begin, std::uint64_t end, std::uint64_t other_begin, std::uint64_t other_end) {
  return begin < other_end && other_begin < end;
}

}  // namespace

void StreamOrder::join(Clock* into, const Clock& other) {
  for (const auto& [stream, time] : other) {
    std::uint64_t& mine = (*into)[stream];
    mine = std::max(mine, time);
  }
}

bool StreamOrder::is_before(const Past& past, const Clock& now) {
  const auto known = now.find(past.use.stream);
  return known != now.end() && past.time <= known->second;
}

void StreamOrder::event_recorded(std::uint64_t event, Stream stream) {
  const std::lock_guard lock(mutex_);
  join(&streams_[stream], host_);
  events_[event] = streams_[stream];
}

void StreamOrder::event_awaited(std::uint64_t event, Stream stream) {
  const std::lock_guard lock(mutex_);
  if (const auto found = events_.find(event); found != events_.end()) join(&streams_[stream], found->second);
}

void StreamOrder::host_awaited_event(std::uint64_t event) {
  const std::lock_guard lock(mutex_);
  if (const auto found = events_.find(event); found != events_.end()) join(&host_, found->second);
}

void StreamOrder::host_awaited_stream(Stream stream) {
  const std::lock_guard lock(mutex_);
  join(&host_, streams_[stream]);
}

void StreamOrder::host_awaited_device() {
  const std::lock_guard lock(mutex_);
  for (const auto& [stream, clock] : streams_) join(&host_, clock);
  returned_.clear();
}

void StreamOrder::handed_out(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  memory_.erase(address);
  waited_for_.erase(address);
}

void StreamOrder::given_back(std::uint64_t address, record::OpId in, std::uint64_t trace) {
  const std::lock_guard lock(mutex_);
  const auto found = memory_.find(address);
  if (found == memory_.end()) return;
  const std::set<Stream>& waits = waited_for_[address];
  for (const Past& past : found->second) {
    if (waits.contains(past.use.stream)) continue;
    returned_.push_back({past, address + past.use.begin, address + past.use.end, in, trace});
  }
  if (returned_.size() > kMostReturned)
    returned_.erase(returned_.begin(), returned_.end() - static_cast<std::ptrdiff_t>(kMostReturned));
  memory_.erase(found);
  waited_for_.erase(address);
}

void StreamOrder::recorded_on(std::uint64_t address, Stream stream) {
  const std::lock_guard lock(mutex_);
  waited_for_[address].insert(stream);
}

void StreamOrder::used(const Use& use) {
  if (use.begin >= use.end) return;
  const std::lock_guard lock(mutex_);
  Clock& now = streams_[use.stream];
  join(&now, host_);
  look_at_returned(use, now);
  std::vector<Past>& uses = memory_[use.address];
  for (const Past& past : uses) {
    if ((past.use.writes || use.writes) && overlap(past.use.begin, past.use.end, use.begin, use.end) &&
        !is_before(past, now))
      note(record::StreamRace::kUse, past, use, record::kNone);
  }
  // What this use comes after, and covers, orders no more than it does itself.
  std::erase_if(uses, [&](const Past& past) {
    const bool is_covered = use.begin <= past.use.begin && past.use.end <= use.end;
    return is_covered && is_before(past, now) && (use.writes || (!past.use.writes && past.use.stream == use.stream));
  });
  if (uses.size() >= kMostUses) uses.erase(uses.begin());
  uses.push_back({use, ++now[use.stream]});
}

// Memory that another tensor had: the second to write there, or to read what is being written, comes too early.
void StreamOrder::look_at_returned(const Use& use, const Clock& now) {
  const std::uint64_t first = use.address + use.begin, last = use.address + use.end;
  std::erase_if(returned_, [&](const Returned& one) {
    if (!overlap(one.first, one.last, first, last)) return false;
    const bool is_done = is_before(one.past, now);
    if (!is_done && (one.past.use.writes || use.writes))
      note(record::StreamRace::kReuse, one.past, use, one.trace == use.trace ? one.in : record::kNone);
    return is_done || use.writes;
  });
}

void StreamOrder::note(record::StreamRace::Kind kind, const Past& past, const Use& use, record::OpId given_back) {
  if (use.op == record::kNone) return;
  if (use.trace != trace_) {
    trace_ = use.trace;
    noted_.clear();
    races_.clear();
  }
  const record::OpId first = past.use.trace == use.trace ? past.use.op : record::kNone;
  if (races_.size() >= kMostRaces || !noted_.insert({first, use.op}).second) return;
  races_.push_back({kind, use.address, use.size_bytes, past.use.stream, use.stream, past.use.writes, use.writes, first,
                    use.op, given_back});
}

std::vector<record::StreamRace> StreamOrder::races() const {
  const std::lock_guard lock(mutex_);
  return races_;
}

}  // namespace finitude::observe
