// Where the time of our own code goes in a training step. For bench/ only: off, it costs one branch per piece.
//
// Exclusive times: what runs inside another piece is counted once, and what runs inside the program that we call is not
// counted at all. One thread trains, with the GIL held; threads beside it would be counted into the piece that is open.
#pragma once

#include <Python.h>

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace finitude::bindings {

enum class Piece : std::uint8_t {
  kProgram,      // not ours
  kHook,         // entry and exit of our functions, what they look up of the optimizer
  kLoss,         // note of the loss
  kGradients,    // walk over the parameters and one read of each gradient, the slice of what was written among them
  kVerdict,      // is it an alarm; the window is closed
  kRing,         // record of the step
  kBufferCheck,  // has a buffer become NaN
  kRng,          // generators at the start of the window
  kBuffers,      // copy of the buffers
  kFrames,       // stack and local names
  kLoader,       // note of a batch
  kWritten,      // everything that the optimizer wrote, where all of it is read
  kUndo,         // copy to go back to
  kCount,
};

struct Meter {
  static constexpr std::size_t kPieces = static_cast<std::size_t>(Piece::kCount);
  struct Totals {
    std::uint64_t ticks[kPieces] = {}, calls[kPieces] = {};
    std::uint64_t splits[kPieces] = {};  // pieces inside this one
  };
  bool on = false;
  Piece now = Piece::kProgram;
  std::uint64_t since = 0, laps = 0;
  Totals totals, at_last_lap;

  static std::uint64_t tick() noexcept {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
  }
  Piece enter(Piece piece) noexcept {
    const Piece before = now;
    const std::uint64_t at = tick();
    totals.ticks[static_cast<std::size_t>(before)] += at - since;
    ++totals.calls[static_cast<std::size_t>(piece)];
    ++totals.splits[static_cast<std::size_t>(before)];
    now = piece;
    since = at;
    return before;
  }
  void leave(Piece before) noexcept {
    const std::uint64_t at = tick();
    totals.ticks[static_cast<std::size_t>(now)] += at - since;
    now = before;
    since = at;
  }
};

extern Meter meter;

// The rest of this scope belongs to `piece`.
class Metered {
 public:
  explicit Metered(Piece piece) noexcept : counts_(meter.on) {
    if (counts_) [[unlikely]]
      before_ = meter.enter(piece);
  }
  ~Metered() {
    if (counts_) [[unlikely]]
      meter.leave(before_);
  }
  Metered(const Metered&) = delete;
  Metered& operator=(const Metered&) = delete;

 private:
  bool counts_;
  Piece before_ = Piece::kProgram;
};

// meter_start()
// meter_lap(forget): a step is over; it counts, or is forgotten (the system took the CPU away meanwhile)
// meter_stop() -> (laps that counted, {piece: (nanoseconds, calls)} of them); what reading the clock takes is left out
PyMethodDef* meter_methods();

}  // namespace finitude::bindings
