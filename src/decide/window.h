// What is a window: everything between two calls of one optimizer's `step`? Facts in, verdict out; no state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace finitude::decide {

// Where a bad value was found. The report has no sink kind of its own for the argument that a script gives to
// `backward`: it is a gradient whose name is "grad_output".
enum class SinkKind : std::uint8_t { kLoss, kGradient, kGradOutput, kParameter, kState, kBuffer };

std::string_view report_word(SinkKind kind) noexcept;  // "loss", "gradient", "parameter", "state", "buffer"

// One root that was handed to an outermost backward of the window, or to GradScaler.scale.
struct LossFact {
  bool bad = false;                 // NaN or Inf, and no earlier `step` has answered for it
  bool owned = true;                // this optimizer owns a gradient below it; always true of a finite loss
  bool grad_bad = false;            // its grad argument is not finite
  bool gradients_were_bad = false;  // a gradient was not finite right after that backward
  std::uint32_t micro_batch = 0;
};

// What was seen until `step` was reached. Gradients are those of the parameters that this optimizer owns.
struct WindowFacts {
  std::span<const LossFact> losses;  // in the order of their backwards
  std::uint32_t bad_gradients = 0;   // not finite before clipping
  std::uint32_t clean_gradients = 0;
  std::uint32_t parameters = 0;     // those without a gradient too
  std::uint32_t laundered = 0;      // bad after backward; zeroed, replaced or taken away by the script since
  std::uint32_t clamped = 0;        // infinite after backward; finite but not zero now. May be part of bad_gradients
  std::uint32_t dropped = 0;        // how often bad gradients were thrown away before the window's last backward
  bool norm_overflow = false;       // the norm for clipping overflowed though every gradient was finite
  bool buffers_turned_nan = false;  // read only where no gradient and no owned loss is bad
};

inline constexpr std::size_t kNoLoss = static_cast<std::size_t>(-1);

struct Verdict {
  enum class Kind : std::uint8_t { kNothing, kAlarm, kHandledByScript };
  Kind kind = Kind::kNothing;
  SinkKind sink = SinkKind::kLoss;      // kAlarm
  bool harmless = false;                // kAlarm: only the loss is bad, the weights are not in danger
  std::size_t loss = kNoLoss;           // kAlarm at a loss: its index in WindowFacts::losses
  std::uint32_t micro_batch = 0;        // kAlarm
  std::uint32_t times = 0;              // kHandledByScript: windows that the script put right
  bool norm_overflow_advisory = false;  // due beside any of the kinds
};

Verdict judge(const WindowFacts& facts) noexcept;

}  // namespace finitude::decide
