// One order for all starts and ends of ops.
#pragma once

#include <cstdint>
#include <vector>

#include "record/trace.h"

namespace finitude::locate {

// Starts come in the order of OpId, ends in the order of end_order; the two are merged so that every end
// comes as early as it can: right after the start of the latest-started op among itself and those that ended
// before it. On one thread this is exactly what happened (an op that starts before another has ended is
// nested in it). Across threads it lets a write count as soon as it may. An op reads when it starts and
// writes when it ends.
struct Timeline {
  struct Moment {
    record::OpId op;
    bool is_end;
  };
  std::vector<Moment> moments;
  std::vector<std::uint32_t> start, end;  // per op: index into moments

  // The moment just after the last end with end_order < at_end_order; 0 if there is none.
  std::uint32_t sink_moment(std::uint32_t at_end_order) const;

 private:
  friend Timeline make_timeline(const record::Trace& trace);
  std::vector<std::uint32_t> end_orders_;  // sorted
  std::vector<std::uint32_t> end_moments_;
};

Timeline make_timeline(const record::Trace& trace);

}  // namespace finitude::locate
