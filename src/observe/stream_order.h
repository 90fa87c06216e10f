// Which uses of a device's memory are ordered by its streams and events: vector clocks. Knows nothing of torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "record/stream_race.h"

namespace finitude::observe {

// Streams, events and addresses are numbers that only have to be different. The work of one stream is done in the order
// in which it was given; of two streams nothing is known but what events and the host order. Any thread.
class StreamOrder {
 public:
  using Stream = std::uint64_t;

  void event_recorded(std::uint64_t event, Stream stream);
  // The stream waits for what was on the event's stream when it was recorded. One that was never recorded orders
  // nothing.
  void event_awaited(std::uint64_t event, Stream stream);
  // The host has waited: all that is given to any stream from here on comes after.
  void host_awaited_event(std::uint64_t event);
  void host_awaited_stream(Stream stream);
  void host_awaited_device();

  void handed_out(std::uint64_t address);
  void given_back(std::uint64_t address, record::OpId in, std::uint64_t trace = 0);
  // The allocator waits for that stream before it hands this memory out again (record_stream).
  void recorded_on(std::uint64_t address, Stream stream);

  // Work that was given to a stream reads or writes bytes begin to end of the memory that begins at `address`.
  struct Use {
    std::uint64_t address = 0, size_bytes = 0;  // of all of that memory
    std::uint64_t begin = 0, end = 0;           // offsets in it
    Stream stream = 0;
    record::OpId op = record::kNone;
    bool writes = false;
    std::uint64_t trace = 0;  // that `op` is of
  };
  void used(const Use& use);

  // The first ones of the last trace, each pair of operations once. What was used outside of it has no operation.
  std::vector<record::StreamRace> races() const;

 private:
  // By stream: how much of its work is done before something. What is not named: nothing of it.
  using Clock = std::unordered_map<Stream, std::uint64_t>;
  struct Past {
    Use use;
    std::uint64_t time = 0;  // of its stream's clock
  };
  struct Returned {
    Past past;
    std::uint64_t first = 0, last = 0;  // addresses, half open
    record::OpId in = record::kNone;
    std::uint64_t trace = 0;
  };
  static void join(Clock* into, const Clock& other);
  static bool is_before(const Past& past, const Clock& now);
  void note(record::StreamRace::Kind kind, const Past& past, const Use& use, record::OpId given_back);
  void look_at_returned(const Use& use, const Clock& now);

  mutable std::mutex mutex_;
  Clock host_;
  std::unordered_map<Stream, Clock> streams_;
  std::unordered_map<std::uint64_t, Clock> events_;
  std::unordered_map<std::uint64_t, std::vector<Past>> memory_;     // by address
  std::unordered_map<std::uint64_t, std::set<Stream>> waited_for_;  // by address, of record_stream
  std::vector<Returned> returned_;
  std::set<std::pair<record::OpId, record::OpId>> noted_;
  std::vector<record::StreamRace> races_;
  std::uint64_t trace_ = 0;  // that the races are of
};

}  // namespace finitude::observe
