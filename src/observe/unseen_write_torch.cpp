#include "observe/unseen_write_torch.h"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "observe/tracer_torch.h"
#include "record/unseen_write.h"

namespace finitude::observe {
namespace {

// Two looks at the same memory, which may have been gone through in another order.
bool same_values(const sense::Health& a, const sense::Health& b) {
  constexpr double kRounding = 1e-6;  // of sum_sq
  return a.numel == b.numel && a.zero == b.zero && a.subnormal == b.subnormal && a.min == b.min && a.max == b.max &&
         a.absmax == b.absmax && std::fabs(a.sum_sq - b.sum_sq) <= kRounding * std::max(a.sum_sq, b.sum_sq);
}

bool is_private(const c10::StorageImpl& storage) {
  if (!storage.resizable()) return false;  // who has it as a NumPy array has locked its size
  if (storage.device_type() != c10::DeviceType::CPU) return true;
  // Memory that is mapped, borrowed or handed over is freed by something else than torch's own allocator.
  return storage.data_ptr().get_deleter() == c10::GetAllocator(c10::DeviceType::CPU)->raw_deleter();
}

}  // namespace

UnseenWrites& unseen_writes() noexcept {
  static UnseenWrites instance;
  return instance;
}

bool may_run_code_of_others(std::string_view name, bool is_node) noexcept {
  // torch notes a detach under two names, one of them without a namespace, also for each gradient that backward keeps.
  if (!is_node) return !name.starts_with("aten::") && name != "detach";
  const bool generated = !name.empty() && name.back() >= '0' && name.back() <= '9';  // "AddmmBackward0"
  const bool own = name.starts_with("torch::autograd::") && name.find('<') == std::string_view::npos;  // AccumulateGrad
  return !generated && !own;
}

bool health_known(KnownHealth& known, std::uint64_t generation, const c10::TensorImpl& tensor,
                  sense::Health* health) noexcept {
  TensorView v;
  if (generation == 0 || !place_of(tensor, &v) || v.dtype == sense::DType::kOther) return false;
  if (v.numel * static_cast<std::int64_t>(tensor.itemsize()) != v.end - v.begin) return false;
  return known.find(generation, {v.storage, v.data, v.begin, v.end, v.dtype}, health);
}

bool is_unseen_write(const at::Tensor& tensor, const record::SeenTensor& seen, const sense::Health& before,
                     bool reads_saved) noexcept {
  if (!seen.use.health.ok() || seen.constant || same_values(before, seen.use.health)) return false;
  TensorView v;
  return place_of(*tensor.unsafeGetTensorImpl(), &v) && (reads_saved || is_private(*v.storage));
}

bool is_of_compiler(const Places* places) {
  record::Stack stack;
  if (places == nullptr || !places->fill_stack(&stack) || stack.frames.empty()) return false;
  return stack.frames.front().file.find("/torchinductor") != std::string::npos;
}

UnseenWrite unseen_write(const at::Tensor& tensor, const record::SeenTensor& seen, const sense::Health& before) {
  UnseenWrite found;
  found.before = found.after = seen;
  found.before.use.health = before;
  found.before.use.written = true;
  const c10::IValue value(tensor);
  HeldCall held(value, [](std::size_t, const at::Tensor&) { return true; });
  found.copy = held.finish(std::string(record::kUnseenWrite), "", &found.size_bytes);
  return found;
}

record::BeginOp begin_of(const UnseenWrite& write, const record::Op& reader, std::uint64_t generation) {
  record::BeginOp begun;
  begun.generation = generation;
  begun.op.name = record::kUnseenWrite;
  begun.op.phase = reader.phase;
  begun.op.parent = reader.parent;
  begun.op.node = reader.node;
  begun.op.micro_batch = reader.micro_batch;
  begun.inputs.push_back(write.before);
  return begun;
}

}  // namespace finitude::observe
