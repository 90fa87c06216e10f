#include "recorder/buffers_torch.h"

#include <algorithm>
#include <utility>

#include "observe/tensor_view_torch.h"

namespace finitude::recorder {

namespace {

bool has_nan(const c10::TensorImpl& impl) noexcept {
  observe::TensorView v;
  return observe::view_of(impl, &v) && observe::quick(v).bad && observe::full(v).nan != 0;
}

}  // namespace

bool holds_nan(const at::Tensor& tensor) noexcept { return tensor.defined() && has_nan(*tensor.unsafeGetTensorImpl()); }

void Buffers::add(std::uint32_t owner, const NamedTensors& named) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : named) {
    if (!tensor.defined()) continue;
    observe::WeakTensor weak(tensor.getIntrusivePtr());
    if (std::any_of(known_.begin(), known_.end(), [&](const Known& one) { return one.tensor == weak; })) continue;
    const bool is_taken = std::any_of(known_.begin(), known_.end(),
                                      [&](const Known& one) { return one.owner != owner && one.name == name; });
    known_.push_back({is_taken ? "optimizer " + std::to_string(owner) + ": " + name : name, std::move(weak), owner});
    tensors.push_back(tensor);
  }
  copies_.watch(tensors);
}

void Buffers::forget(std::uint32_t owner) {
  std::erase_if(known_, [&](const Known& one) { return one.owner == owner; });
  copies_ = {};
  std::vector<at::Tensor> left;
  for (const Buffer& buffer : live()) left.push_back(buffer.tensor);
  copies_.watch(left);
}

void Buffers::begin_step() {
  copies_.take();
  for (Known& one : known_) {
    if (!std::exchange(one.is_new, false)) continue;
    const auto tensor = one.tensor.lock();
    one.had_nan = tensor && has_nan(*tensor);
  }
}

bool Buffers::turned_nan() noexcept {
  bool turned = false;
  for (Known& one : known_) {
    const auto tensor = one.tensor.lock();
    if (!tensor) continue;
    const bool bad = has_nan(*tensor);
    turned |= bad && !one.had_nan;
    one.had_nan &= bad;
  }
  return turned;
}

void Buffers::settle() noexcept {
  for (Known& one : known_) {
    const auto tensor = one.tensor.lock();
    one.had_nan = tensor && has_nan(*tensor);
  }
}

bool Buffers::is_written(const Buffer& buffer) const {
  observe::TensorView v;
  if (!observe::view_of(*buffer.tensor.unsafeGetTensorImpl(), &v) || !v.contiguous) return false;
  const std::string now(v.data, static_cast<std::size_t>(v.end - v.begin));
  std::string before = now;
  copies_.put_into(*v.storage, v.begin, &before);
  return before != now;
}

std::vector<Buffer> Buffers::live() const {
  std::vector<Buffer> live;
  for (const Known& one : known_) {
    if (auto tensor = one.tensor.lock(); tensor.defined())
      live.push_back({one.name, at::Tensor(std::move(tensor)), one.owner, one.had_nan});
  }
  return live;
}

}  // namespace finitude::recorder
