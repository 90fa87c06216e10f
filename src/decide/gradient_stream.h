// Gradients read as backward produces them: which are collected into a batch, when a batch is sent off, how long its
// memory is kept, and whose result still is when the step asks. Decisions only: what they are carried out with is
// the caller's ReadAhead, and memory is compared by address, never followed.
//
// A gradient is collected when backward has accumulated it, on the lane (a stream) that wrote it. A full batch is read
// beside what the lane does next. A result represents a gradient where that is still the same tensor on the same memory
// with the same version: then nothing was written to it since before the read was given to the device. All else is read
// by the step.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace finitude::decide {

struct GradientId {
  const void* tensor = nullptr;
  const void* storage = nullptr;  // not given away to another one while its result may be asked for
  const void* data = nullptr;
  std::uint64_t bytes = 0;
  std::uint32_t version = 0;

  bool operator==(const GradientId&) const = default;
};

// A stream of the device, compared only.
using Lane = const void*;

class ReadAhead {
 public:
  // Keeps the memory that this gradient had when it was collected. False: it is gone.
  virtual bool hold(std::uint32_t gradient) = 0;
  // Has held gradients read after all that `lane` was given so far. False: it cannot be done now.
  virtual bool read(Lane lane, const std::uint32_t* gradients, std::uint32_t count) = 0;
  // What `lane` is given from now on comes after all that was read so far.
  virtual void join(Lane lane) = 0;
  // The memory may go where its owner has let go of it.
  virtual void let_go(const std::uint32_t* gradients, std::uint32_t count) = 0;

 protected:
  ~ReadAhead() = default;
};

// One optimizer's gradients on one device. Not thread safe: backward's threads and the program's take turns by the
// caller's lock.
class GradientStream {
 public:
  static constexpr std::uint32_t kLanes = 4;         // a gradient on a further one is left to the step
  static constexpr std::uint32_t kMostTensors = 64;  // in a batch
  static constexpr std::uint32_t kMostFailures = 7;  // in a row that count: after so many, one window in 65 is tried

  explicit GradientStream(ReadAhead& device) : device_(device) {}

  // Allocates; nothing below does. Batches are sent off at so many bytes. What was read so far is forgotten.
  void reserve(std::uint32_t gradients, std::uint64_t batch_bytes);
  std::uint32_t room() const noexcept { return static_cast<std::uint32_t>(ones_.size()); }

  // `last`: of its window, as far as one knows. An earlier one's gradients are going to be added to: they are not read.
  void begin_backward(bool last) noexcept {
    active_ = last && !ones_.empty();
    ++backward_;
  }
  bool is_active() const noexcept { return active_; }
  // Backward has written this gradient, and nothing that `lane` is given later writes it.
  void written(std::uint32_t gradient, const GradientId& id, Lane lane);
  // Also where it failed. `caller`: the stream of the thread that called backward, which waits for backward's own
  // streams already.
  void end_backward(Lane caller);

  // Does what was read ahead of this gradient stand?
  bool stands(std::uint32_t gradient, const GradientId& id) const noexcept;
  // It was made use of in the place of a read.
  void used(std::uint32_t gradient) noexcept;
  // The step is decided. A gradient whose result was of no use is left alone for a window, for 2, 4 ... 64 where it
  // continues like that.
  void end_window() noexcept;

 private:
  enum class State : std::uint8_t { kNone, kCollected, kRead };
  struct One {
    GradientId id;
    State state = State::kNone;
    bool was_read = false, was_used = false;  // in this window
    std::uint8_t failures = 0, pause = 0;
    std::uint64_t backward = 0;  // that it was collected in last
  };
  struct Batch {
    Lane lane = nullptr;
    bool open = false;  // the lane has been seen in this backward
    std::uint64_t bytes = 0;
    std::uint32_t count = 0;
    std::array<std::uint32_t, kMostTensors> gradients;
    std::uint32_t held_count = 0;  // read, and not joined by the lane yet: at most one batch
    std::array<std::uint32_t, kMostTensors> held;
  };

  Batch* batch_of(Lane lane) noexcept;
  void send(Batch& batch);
  void settle(Batch& batch);

  ReadAhead& device_;
  std::vector<One> ones_;
  std::array<Batch, kLanes> batches_;
  std::uint64_t batch_bytes_ = 0, backward_ = 0;
  bool active_ = false;
};

// Is there anything to hide? Where all gradients together are read in less time than it takes to start a few reads,
// there is not.
enum class Streaming : std::uint8_t { kOff, kAuto, kOn };
inline constexpr std::uint64_t kLeastToStream = std::uint64_t{256} << 20;  // bytes of gradients of an optimizer
bool wants_streaming(Streaming mode, std::uint64_t gradient_bytes, bool several_ranks) noexcept;
// A sixteenth of all, 16 MB at least: what is left over for the step is less than that.
std::uint64_t batch_bytes_of(std::uint64_t gradient_bytes) noexcept;

}  // namespace finitude::decide
