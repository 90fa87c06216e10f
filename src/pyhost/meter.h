// Where the time of our own code goes in a training step. For bench/ only: off, it costs one branch per piece.
//
// Exclusive times: what runs inside another piece is counted once, and what runs inside the program that we call is not
// counted at all. All of it runs on the thread that trains, with the GIL held, and nothing here is atomic: another
// thread that enters a piece meanwhile is counted into the piece that is open.
#pragma once

#include <Python.h>

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace finitude::bindings {

enum class Piece : std::uint8_t {
  kProgram,      // the program itself
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

// The state of the measurement. Time since `since` belongs to the piece `now`. Each change of piece closes the interval
// of the one before, so that every tick belongs to exactly one piece.
struct Meter {
  static constexpr std::size_t kPieces = static_cast<std::size_t>(Piece::kCount);
  // `splits` counts how often a piece was interrupted by another one. Entering and leaving a piece takes time that is
  // charged partly to the inner and partly to the outer piece; meter_stop() subtracts it from both by these counts.
  struct Totals {
    std::uint64_t ticks[kPieces] = {}, calls[kPieces] = {};
    std::uint64_t splits[kPieces] = {};  // pieces inside this one
  };
  bool on = false;
  Piece now = Piece::kProgram;
  std::uint64_t since = 0, laps = 0;
  // A lap that is to be forgotten sets the totals back to those of the last lap that counted.
  Totals totals, at_last_lap;

  // The time stamp counter where there is one: it is cheaper to read than the system's clock. Ticks are turned into
  // nanoseconds only at the end, by the two clocks' readings at start and stop.
  static std::uint64_t tick() noexcept {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
  }
  // Returns the piece that was open, which leave() needs: pieces nest as scopes do, and the caller keeps the stack.
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
  // `before` is what enter() returned.
  void leave(Piece before) noexcept {
    const std::uint64_t at = tick();
    totals.ticks[static_cast<std::size_t>(now)] += at - since;
    now = before;
    since = at;
  }
};

// One for the process, written with the GIL held. `on` is all that a healthy step reads of it while it is off.
extern Meter meter;

// `counts_` is read once, so that a scope in which the meter is switched on or off does not leave a piece that it never
// entered.
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
// meter_stop() -> (laps that counted, {piece: (nanoseconds, calls)} of them), without the time of reading the clock
PyMethodDef* meter_methods();

}  // namespace finitude::bindings
