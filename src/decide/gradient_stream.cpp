#include "decide/gradient_stream.h"

#include <algorithm>

namespace finitude::decide {

void GradientStream::reserve(std::uint32_t gradients, std::uint64_t batch_bytes) {
  if (gradients > ones_.size()) ones_.resize(gradients);
  batch_bytes_ = batch_bytes;
  for (One& one : ones_) one.state = State::kNone;
}

GradientStream::Batch* GradientStream::batch_of(Lane lane) noexcept {
  for (Batch& batch : batches_) {
    if (batch.open && batch.lane == lane) return &batch;
  }
  for (Batch& batch : batches_) {
    if (batch.open) continue;
    batch.open = true;
    batch.lane = lane;
    return &batch;
  }
  return nullptr;
}

void GradientStream::written(std::uint32_t gradient, const GradientId& id, Lane lane) {
  if (!active_ || gradient >= ones_.size()) return;
  One& one = ones_[gradient];
  if (one.pause != 0) return;
  if (one.state != State::kNone && one.id == id) return;  // backward passed by and wrote nothing
  one.state = State::kNone;
  // Written a second time in one backward, as below a checkpoint: a third may follow. Its entry in a batch is one
  // without a state now.
  if (one.backward == backward_) return;
  Batch* batch = batch_of(lane);
  if (batch == nullptr || batch->count == kMostTensors) return;
  one.id = id;
  one.state = State::kCollected;
  one.backward = backward_;
  batch->gradients[batch->count++] = gradient;
  batch->bytes += id.bytes;
  if (batch->bytes >= batch_bytes_ || batch->count == kMostTensors) send(*batch);
}

// The lane has work of its own to do between two of its batches, so that the one before has long been read: to wait for
// it here costs nothing, and no more than one batch's memory is kept for a lane.
void GradientStream::settle(Batch& batch) {
  if (batch.held_count == 0) return;
  device_.join(batch.lane);
  device_.let_go(batch.held.data(), batch.held_count);
  batch.held_count = 0;
}

void GradientStream::send(Batch& batch) {
  settle(batch);
  std::uint32_t count = 0;
  for (std::uint32_t i = 0; i < batch.count; ++i) {
    const std::uint32_t gradient = batch.gradients[i];
    if (ones_[gradient].state != State::kCollected) continue;
    if (device_.hold(gradient))
      batch.held[count++] = gradient;
    else
      ones_[gradient].state = State::kNone;
  }
  batch.count = 0;
  batch.bytes = 0;
  if (count == 0) return;
  if (device_.read(batch.lane, batch.held.data(), count)) {
    batch.held_count = count;
    for (std::uint32_t i = 0; i < count; ++i) {
      ones_[batch.held[i]].state = State::kRead;
      ones_[batch.held[i]].was_read = true;
    }
    return;
  }
  for (std::uint32_t i = 0; i < count; ++i) ones_[batch.held[i]].state = State::kNone;
  device_.let_go(batch.held.data(), count);
  active_ = false;  // the rest of this backward is left to the step
}

void GradientStream::end_backward(Lane caller) {
  active_ = false;
  bool any = false, caller_too = false;
  for (Batch& batch : batches_) {
    for (std::uint32_t i = 0; i < batch.count; ++i) {
      One& one = ones_[batch.gradients[i]];
      if (one.state == State::kCollected) one.state = State::kNone;
    }
    batch.count = 0;
    batch.bytes = 0;
    if (batch.held_count == 0) continue;
    any = true;
    caller_too = caller_too || batch.lane == caller;
    device_.join(batch.lane);
  }
  if (any && !caller_too) device_.join(caller);
  for (Batch& batch : batches_) {
    if (batch.held_count != 0) device_.let_go(batch.held.data(), batch.held_count);
    batch.held_count = 0;
    batch.open = false;
  }
}

bool GradientStream::stands(std::uint32_t gradient, const GradientId& id) const noexcept {
  return gradient < ones_.size() && ones_[gradient].state == State::kRead && ones_[gradient].id == id;
}

void GradientStream::used(std::uint32_t gradient) noexcept {
  if (gradient < ones_.size()) ones_[gradient].was_used = true;
}

void GradientStream::end_window() noexcept {
  for (One& one : ones_) {
    if (one.pause != 0) --one.pause;
    if (one.was_read) {
      one.failures =
          one.was_used ? 0 : static_cast<std::uint8_t>(std::min<std::uint32_t>(one.failures + 1u, kMostFailures));
      one.pause = one.was_used ? 0 : static_cast<std::uint8_t>(1u << (one.failures - 1));
    }
    one.was_read = one.was_used = false;
    one.state = State::kNone;
  }
}

bool wants_streaming(Streaming mode, std::uint64_t gradient_bytes, bool several_ranks) noexcept {
  return mode == Streaming::kOn || (mode == Streaming::kAuto && gradient_bytes >= kLeastToStream && !several_ranks);
}

std::uint64_t batch_bytes_of(std::uint64_t gradient_bytes) noexcept {
  return std::max(std::uint64_t{16} << 20, gradient_bytes / 16);
}

}  // namespace finitude::decide
