// Breadth-first search back in time through what explains bad values.
#pragma once

#include <cstdint>
#include <vector>

#include "locate/flow.h"

namespace finitude::locate {

// One search may be fed from several starting points; what one of them has reached is not entered again.
class Search {
 public:
  explicit Search(const Flow& flow)
      : flow_(flow),
        layer_seen_(flow.layers.size()),
        seen_(flow.events.size()),
        next_(flow.events.size(), record::kNone) {}

  // Queues the events behind these sources that carry a label of `mask`. `from`: the event that read them,
  // kNone: a sink.
  void follow(Range sources, Labels mask, EventId from);
  // The next event of the queue in the order found, kNone at the end.
  EventId pop() { return head_ < queue_.size() ? queue_[head_++] : record::kNone; }

  bool seen(EventId event) const { return seen_[event]; }
  EventId next(EventId event) const { return next_[event]; }    // one step towards the start; kNone: read there
  const std::vector<EventId>& queue() const { return queue_; }  // everything reached so far

 private:
  const Flow& flow_;
  std::vector<std::uint16_t> layer_seen_;  // 3 bits of kinds per label
  std::vector<bool> seen_;
  std::vector<EventId> next_, queue_;
  std::vector<LayerId> stack_;
  std::size_t head_ = 0;
};

// All labels among these sources.
Labels labels_of(const Flow& flow, Range sources) noexcept;

// What to follow from an event or sink whose sources carry `labels`: damage; memory nobody wrote only where
// nothing else explains it; intended values never.
Labels worth_following(Labels labels) noexcept;

}  // namespace finitude::locate
