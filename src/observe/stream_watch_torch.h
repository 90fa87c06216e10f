// Which stream of a device uses which memory, and what orders them: what torch's own trace of the device reports, and
// the stream that is current as an operator is called. In a second process, whose results do not matter.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <vector>

#include "record/stream_race.h"

namespace finitude::observe {

// As torch.cuda._gpu_trace reports them: (event, stream), (stream), (event), nothing, (address).
enum class StreamEvent : std::uint8_t {
  kRecorded,
  kAwaited,
  kStreamMade,
  kHostAwaitsStream,
  kHostAwaitsEvent,
  kHostAwaitsDevice,
  kHandedOut,
  kGivenBack,
};

// Operators are watched from the first stream or event on that the program makes. handle_of: the number that such a
// report has for a stream. Any thread. Never throws.
void stream_event(StreamEvent kind, std::uint64_t first, std::uint64_t second,
                  void* (*handle_of)(const c10::Stream&)) noexcept;

// Of the trace at hand.
std::vector<record::StreamRace> stream_races();

}  // namespace finitude::observe
