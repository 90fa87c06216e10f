// Rows of steps on their way from the thread that trains to the thread that writes: memory of fixed size, no lock, no
// allocation. Where the reader falls behind for longer than the memory lasts, rows are dropped and counted.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <span>
#include <vector>

namespace finitude::store {

// What is to be remembered of a step: its rows are kept then.
enum class StepEvent : std::uint8_t { kNone, kWarning, kSpike, kAlarm };

// Parameter groups whose learning rates are stored.
inline constexpr std::size_t kMostGroups = 8;
// What is known of each parameter besides its largest magnitudes, in the order of StepRow::parts.
inline constexpr const char* kPartNames[] = {"update_ratio", "state_absmax", "gradient_zeros", "gradient_subnormals"};
inline constexpr std::size_t kParts = std::size(kPartNames);

// A step of one optimizer. NaN: not known.
struct StepRow {
  std::uint64_t step = 0;
  std::uint32_t optimizer = 0;  // its ordinal
  std::uint64_t time_ns = 0;    // monotonic clock
  double loss = std::numeric_limits<double>::quiet_NaN(), gradient_norm = loss, gradient_absmax = loss,
         learning_rate = loss, loss_scale = loss, logits_absmax = loss, attention_absmax = loss;
  // Largest magnitudes of each parameter, in order; negative: none. Empty: not looked at in this step.
  std::span<const float> gradients, weights;
  std::span<const float> norms = {};   // of each parameter's gradient, as many as `gradients`, or empty
  std::span<const std::byte> batches;  // of a RowsWriter
  bool is_applied = true;              // false: no series has a value of it
  StepEvent event = StepEvent::kNone;
  // Of several micro-batches: the first, smallest and largest loss of them; `loss` is the last one's.
  double loss_first = std::numeric_limits<double>::quiet_NaN(), loss_min = loss_first, loss_max = loss_first;
  // One quantity of all parameters after the other, kParts times as many as `weights`, or empty; negative: none.
  std::span<const float> parts = {};
  std::span<const double> more_rates = {};  // of the second parameter group and those after it
};

// What the spans of a row point into that was taken out of the queue.
struct StepMemory {
  std::vector<float> floats;
  std::vector<double> rates;
  std::vector<std::byte> bytes;
};

class StepQueue {
 public:
  explicit StepQueue(std::size_t size_bytes) : words_(std::bit_ceil(size_bytes / 8)), mask_(words_.size() - 1) {}

  // By one thread at a time. False: there is no room.
  bool push(const StepRow& row) noexcept {
    const bool has_norms = !row.norms.empty() && row.norms.size() == row.gradients.size();
    const bool has_parts = !row.parts.empty() && row.parts.size() == kParts * row.weights.size();
    const std::size_t floats =
        row.gradients.size() * (has_norms ? 2 : 1) + row.weights.size() * (has_parts ? 1 + kParts : 1);
    const std::span<const double> rates = row.more_rates.first(std::min(row.more_rates.size(), kMostGroups - 1));
    const std::uint64_t front = kHead + rates.size();
    const std::uint64_t needed = front + (floats + 1) / 2 + (row.batches.size() + 7) / 8;
    const std::uint64_t head = head_.load(std::memory_order_relaxed);
    if (needed > words_.size() - (head - tail_.load(std::memory_order_acquire))) {
      left_out_.fetch_add(1, std::memory_order_relaxed);
      return false;
    }
    const std::uint64_t words[kHead] = {row.step,
                                        row.optimizer | std::uint64_t{has_norms} << 32 |
                                            std::uint64_t{row.is_applied} << 33 | std::uint64_t{has_parts} << 34 |
                                            std::uint64_t{static_cast<std::uint8_t>(row.event)} << 40 |
                                            std::uint64_t{rates.size()} << 48,
                                        std::uint64_t{row.gradients.size()} << 32 | row.weights.size(),
                                        row.time_ns,
                                        std::bit_cast<std::uint64_t>(row.loss),
                                        std::bit_cast<std::uint64_t>(row.gradient_norm),
                                        std::bit_cast<std::uint64_t>(row.gradient_absmax),
                                        std::bit_cast<std::uint64_t>(row.learning_rate),
                                        std::bit_cast<std::uint64_t>(row.loss_scale),
                                        row.batches.size(),
                                        std::bit_cast<std::uint64_t>(row.logits_absmax),
                                        std::bit_cast<std::uint64_t>(row.attention_absmax),
                                        std::bit_cast<std::uint64_t>(row.loss_first),
                                        std::bit_cast<std::uint64_t>(row.loss_min),
                                        std::bit_cast<std::uint64_t>(row.loss_max)};
    copy_in(head * 8, words, sizeof words);
    copy_in((head + kHead) * 8, rates.data(), rates.size_bytes());
    std::uint64_t at = (head + front) * 8;
    for (const std::span<const float> some :
         {row.gradients, row.weights, has_parts ? row.parts : kNone, has_norms ? row.norms : kNone}) {
      copy_in(at, some.data(), some.size_bytes());
      at += some.size_bytes();
    }
    copy_in((head + front + (floats + 1) / 2) * 8, row.batches.data(), row.batches.size());
    head_.store(head + needed, std::memory_order_release);
    return true;
  }

  // By one other thread. memory: the row's spans point into it. False: there is none.
  bool pop(StepRow* row, StepMemory* memory) {
    const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
    if (tail == head_.load(std::memory_order_acquire)) return false;
    std::uint64_t words[kHead];
    copy_out(tail * 8, words, sizeof words);
    const std::size_t gradients = words[2] >> 32, weights = words[2] & 0xffffffffu;
    auto& [floats, rates, bytes] = *memory;
    const std::size_t norms = (words[1] >> 32 & 1) != 0 ? gradients : 0,
                      parts = (words[1] >> 34 & 1) != 0 ? kParts * weights : 0;
    floats.resize(gradients + weights + parts + norms);
    rates.resize(words[1] >> 48 & 0xff);
    bytes.resize(words[9]);
    const std::uint64_t behind = tail + kHead + rates.size() + (floats.size() + 1) / 2;
    copy_out((tail + kHead) * 8, rates.data(), rates.size() * sizeof(double));
    copy_out((tail + kHead + rates.size()) * 8, floats.data(), floats.size() * sizeof(float));
    copy_out(behind * 8, bytes.data(), bytes.size());
    row->step = words[0];
    row->optimizer = static_cast<std::uint32_t>(words[1]);
    row->is_applied = (words[1] >> 33 & 1) != 0;
    row->event = static_cast<StepEvent>(words[1] >> 40 & 0xff);
    row->time_ns = words[3];
    row->loss = std::bit_cast<double>(words[4]);
    row->gradient_norm = std::bit_cast<double>(words[5]);
    row->gradient_absmax = std::bit_cast<double>(words[6]);
    row->learning_rate = std::bit_cast<double>(words[7]);
    row->loss_scale = std::bit_cast<double>(words[8]);
    row->logits_absmax = std::bit_cast<double>(words[10]);
    row->attention_absmax = std::bit_cast<double>(words[11]);
    row->loss_first = std::bit_cast<double>(words[12]);
    row->loss_min = std::bit_cast<double>(words[13]);
    row->loss_max = std::bit_cast<double>(words[14]);
    row->more_rates = rates;
    row->gradients = std::span(floats).first(gradients);
    row->weights = std::span(floats).subspan(gradients, weights);
    row->parts = std::span(floats).subspan(gradients + weights, parts);
    row->norms = std::span(floats).last(norms);
    row->batches = bytes;
    tail_.store(behind + (bytes.size() + 7) / 8, std::memory_order_release);
    return true;
  }

  // By the thread that pops.
  bool is_empty() const noexcept {
    return tail_.load(std::memory_order_relaxed) == head_.load(std::memory_order_acquire);
  }
  std::uint64_t left_out() const noexcept { return left_out_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t kHead = 15;
  static constexpr std::span<const float> kNone = {};

  // At this byte of an endless queue, which wraps around in memory.
  void copy_in(std::uint64_t at, const void* from, std::size_t size) noexcept {
    const std::size_t begin = at & (mask_ * 8 + 7), first = std::min(size, words_.size() * 8 - begin);
    if (size == 0) return;
    auto* const memory = reinterpret_cast<std::byte*>(words_.data());
    std::memcpy(memory + begin, from, first);
    std::memcpy(memory, static_cast<const std::byte*>(from) + first, size - first);
  }
  void copy_out(std::uint64_t at, void* to, std::size_t size) const noexcept {
    const std::size_t begin = at & (mask_ * 8 + 7), first = std::min(size, words_.size() * 8 - begin);
    if (size == 0) return;
    const auto* const memory = reinterpret_cast<const std::byte*>(words_.data());
    std::memcpy(to, memory + begin, first);
    std::memcpy(static_cast<std::byte*>(to) + first, memory, size - first);
  }

  std::vector<std::uint64_t> words_;
  std::uint64_t mask_;
  alignas(64) std::atomic<std::uint64_t> head_ = 0;
  alignas(64) std::atomic<std::uint64_t> tail_ = 0;
  std::atomic<std::uint64_t> left_out_ = 0;
};

}  // namespace finitude::store
