// The calls that the tracer has copied, by the op of the trace that each is.
#include "observe/tracer_torch.h"

namespace finitude::observe {
namespace {

constexpr std::size_t kMaxCapture = 256u << 20;
constexpr std::size_t kMaxCaptures = 512;
constexpr std::size_t kMaxWithIntegers = 128;  // the rest is for what went wrong

}  // namespace

const CapturedCall* Tracer::captured(record::OpId op) const {
  std::lock_guard<std::mutex> lock(captured_mutex_);
  const auto it = captured_.find(op);
  return it == captured_.end() ? nullptr : it->second.get();
}

bool Tracer::keep_call(record::OpId op, std::shared_ptr<CapturedCall> call, std::size_t size_bytes) {
  if (call == nullptr) return false;
  std::lock_guard<std::mutex> lock(captured_mutex_);
  if (captured_.size() >= kMaxCaptures || captured_bytes_ + size_bytes >= kMaxCapture) return false;
  captured_bytes_ += size_bytes;
  captured_[op] = std::move(call);
  return true;
}

bool Tracer::may_keep_integers() const {
  std::lock_guard<std::mutex> lock(captured_mutex_);
  return captured_.size() < kMaxWithIntegers;
}

void Tracer::move_captured(const std::unordered_map<record::OpId, record::OpId>& ops) {
  std::unordered_map<record::OpId, std::shared_ptr<CapturedCall>> moved, old;
  std::lock_guard<std::mutex> lock(captured_mutex_);
  for (auto& [op, call] : captured_) {
    if (const auto it = ops.find(op); it != ops.end()) moved[it->second] = std::move(call);
  }
  captured_.swap(old);
  captured_.swap(moved);
}

}  // namespace finitude::observe
