// The layout of a ring file: one record per optimizer step in a fixed amount of memory. Plain data, no system headers.
//
// A header of one 4096-byte page, then `capacity` records of 64 bytes; record number n lies in slot n % capacity. All
// numbers are in the byte order of the machine that wrote them. A record holds its own number and a checksum of all its
// bytes, so a reader needs no lock: a record that is being written, or was when the process died, does not add up.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace finitude::record {

inline constexpr std::uint64_t kRingMagic = 0x0a676e6952746946;  // "FitRing\n" in little-endian order
inline constexpr std::uint32_t kRingVersion = 1;
inline constexpr std::size_t kRingHeaderBytes = 4096;
inline constexpr std::uint64_t kDefaultRingCapacity = 4096;
inline constexpr std::uint64_t kMaxRingCapacity = std::uint64_t{1} << 20;  // 64 MiB

// What happened to the step.
enum StepFlags : std::uint32_t {
  kStepApplied = 1,
  kStepVetoed = 2,
  kStepScalerSkip = 4,
  kStepAlarm = 8,
  kStepHandledByScript = 16,
  kStepGradientScaled = 32,  // grad_absmax was read before the GradScaler had unscaled the gradients
};

// The loss scale that a GradScaler had at the step lies in the upper half of the flags, as a bfloat16: powers of two,
// which it moves by, are exact, others lose 1/256 at most. 0: no scaler, or one on a device, which is not waited for.
constexpr std::uint32_t loss_scale_flags(float scale) noexcept {
  if (!(scale > 0) || scale > 3e38f) return 0;
  return (std::bit_cast<std::uint32_t>(scale) + 0x8000u) & 0xffff0000u;
}
constexpr float loss_scale(std::uint32_t flags) noexcept { return std::bit_cast<float>(flags & 0xffff0000u); }

// What the training thread knows of one step. Doubles may be NaN or Inf: that is what they are here to say.
struct StepRecord {
  std::uint64_t step = 0;       // of this optimizer
  std::uint32_t optimizer = 0;  // its ordinal
  std::uint32_t flags = 0;      // StepFlags and loss_scale_flags(); unknown bits are kept
  double loss = 0;
  double grad_absmax = 0;
  double lr = 0;
  std::uint64_t time_ns = 0;  // of the monotonic clock
};

// By what the gradients of the step were multiplied when they were read, where that is known.
constexpr double gradient_scale(const StepRecord& step) noexcept {
  const float scale = (step.flags & kStepGradientScaled) != 0 ? loss_scale(step.flags) : 0;
  return scale > 0 ? static_cast<double>(scale) : 1;
}

constexpr double unscaled_gradient(const StepRecord& step) noexcept { return step.grad_absmax / gradient_scale(step); }

// Offsets in bytes, for who reads the file with another language.
struct RingHeader {
  std::uint64_t magic;            //  0
  std::uint32_t version;          //  8
  std::uint32_t header_bytes;     // 12  kRingHeaderBytes
  std::uint32_t record_bytes;     // 16  sizeof(RingSlot)
  std::uint32_t pid;              // 20
  std::uint64_t capacity;         // 24  a power of two
  std::uint64_t started_unix_ns;  // 32  wall clock
  std::uint64_t started_ns;       // 40  monotonic clock at that moment
  std::uint64_t checksum;         // 48  base::checksum of the 48 bytes before
  std::uint64_t pushed;           // 56  records pushed so far; written last, a hint only
};

// A slot that was never written is all zero bits.
struct RingSlot {
  std::uint64_t number;                 //  0  n + 1
  std::uint64_t step;                   //  8
  std::uint64_t optimizer_flags;        // 16  optimizer in the low half
  std::uint64_t loss, grad_absmax, lr;  // 24, 32, 40  bits of the doubles
  std::uint64_t time_ns;                // 48
  std::uint64_t check;                  // 56  ring_check() of the seven words before
};

static_assert(std::is_trivially_copyable_v<RingHeader> && sizeof(RingHeader) == 64);
static_assert(std::is_trivially_copyable_v<RingSlot> && sizeof(RingSlot) == 64);
static_assert(offsetof(RingHeader, checksum) == 48 && offsetof(RingSlot, check) == 56);

// Every word through a bijection, chained: a record with words of two generations passes by chance only, 2^-64.
constexpr std::uint64_t ring_check(const std::uint64_t (&words)[7]) noexcept {
  std::uint64_t sum = 0x9e3779b97f4a7c15u;
  for (const std::uint64_t word : words) {
    sum = (sum ^ word) * 0xbf58476d1ce4e5b9u;
    sum ^= sum >> 29;
  }
  return sum;
}

}  // namespace finitude::record
