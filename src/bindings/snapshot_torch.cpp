#include "bindings/snapshot_torch.h"

#include <ATen/core/Generator.h>

#include <cstring>
#include <mutex>

#include "bindings/meter.h"
#include "observe/tensor_view_torch.h"

namespace finitude::bindings {
namespace {

std::uintptr_t numpy_address = 0;
PyObject* python_random = nullptr;

char* python_random_memory() noexcept {
  return python_random == nullptr ? nullptr : reinterpret_cast<char*>(python_random) + sizeof(PyObject);
}

}  // namespace

void set_numpy_state_address(std::uintptr_t address) noexcept { numpy_address = address; }

void set_python_random(PyObject* instance) noexcept {
  Py_XINCREF(instance);
  Py_XSETREF(python_random, instance);
}

namespace {

std::vector<at::Generator>& own_generators() {
  static auto* generators = new std::vector<at::Generator>();
  return *generators;
}

void take_generator(const at::Generator& generator, TorchRng* state) noexcept {
  try {
    auto* impl = at::check_generator<at::CPUGeneratorImpl>(generator);
    const std::lock_guard<std::mutex> lock(impl->mutex_);
    state->engine = impl->engine().data();
    state->next_float = impl->next_float_normal_sample();
    state->next_double = impl->next_double_normal_sample();
    state->taken = true;
  } catch (...) {
    state->taken = false;
  }
}

void restore_generator(const at::Generator& generator, const TorchRng& state) noexcept {
  if (!state.taken) return;
  try {
    auto* impl = at::check_generator<at::CPUGeneratorImpl>(generator);
    const std::lock_guard<std::mutex> lock(impl->mutex_);
    at::mt19937 engine;
    engine.set_data(state.engine);
    impl->set_engine(engine);
    impl->set_next_float_normal_sample(state.next_float);
    impl->set_next_double_normal_sample(state.next_double);
  } catch (...) {
  }
}

void take_twister(const char* memory, TwisterRng* state) noexcept {
  state->taken = memory != nullptr;
  if (state->taken) std::memcpy(state->bytes.data(), memory, state->bytes.size());
}

void restore_twister(char* memory, const TwisterRng& state) noexcept {
  if (memory != nullptr && state.taken) std::memcpy(memory, state.bytes.data(), state.bytes.size());
}

}  // namespace

void watch_generators(std::vector<at::Generator> generators) { own_generators() = std::move(generators); }

void take_rng(RngState* state) noexcept {
  const Metered rng(Piece::kRng);
  take_generator(at::detail::getDefaultCPUGenerator(), &state->torch_cpu);
  state->own.resize(own_generators().size());
  for (std::size_t i = 0; i < state->own.size(); ++i) take_generator(own_generators()[i], &state->own[i]);
  take_twister(python_random_memory(), &state->python);
  take_twister(reinterpret_cast<const char*>(numpy_address), &state->numpy);
}

void restore_rng(const RngState& state) noexcept {
  restore_generator(at::detail::getDefaultCPUGenerator(), state.torch_cpu);
  for (std::size_t i = 0; i < state.own.size() && i < own_generators().size(); ++i) {
    restore_generator(own_generators()[i], state.own[i]);
  }
  restore_twister(python_random_memory(), state.python);
  restore_twister(reinterpret_cast<char*>(numpy_address), state.numpy);
}

void BufferSnapshot::watch(const std::vector<at::Tensor>& buffers) {
  items_.clear();
  std::size_t offset = 0;
  for (const at::Tensor& t : buffers) {
    observe::TensorView v;
    if (!t.defined() || !observe::view_of(*t.unsafeGetTensorImpl(), &v) || !v.contiguous) continue;
    const auto size_bytes = static_cast<std::size_t>(v.end - v.begin);
    items_.push_back({c10::weak_intrusive_ptr<c10::TensorImpl>(t.getIntrusivePtr()), offset, size_bytes, ~0u});
    offset += size_bytes;
  }
  bytes_.resize(offset);
}

void BufferSnapshot::take() noexcept {
  // Batch norm's kernels write running statistics without a version bump, so small buffers are always copied.
  constexpr std::size_t kAlways = 64 * 1024;
  const Metered buffers(Piece::kBuffers);
  for (Item& item : items_) {
    const auto tensor = item.tensor.lock();
    observe::TensorView v;
    if (!tensor || !observe::view_of(*tensor, &v) || static_cast<std::size_t>(v.end - v.begin) != item.size_bytes) continue;
    const std::uint32_t version = tensor->is_inference() ? ~0u : tensor->version_counter().current_version();
    if (item.size_bytes > kAlways && version == item.version) continue;
    item.version = version;
    std::memcpy(bytes_.data() + item.offset, v.data, item.size_bytes);
  }
}

bool BufferSnapshot::turned_nan() const noexcept {
  const Metered check(Piece::kBufferCheck);
  for (const Item& item : items_) {
    const auto tensor = item.tensor.lock();
    observe::TensorView v;
    if (!tensor || !observe::view_of(*tensor, &v) || static_cast<std::size_t>(v.end - v.begin) != item.size_bytes) continue;
    if (!observe::quick(v).bad || observe::full(v).nan == 0) continue;
    if (sense::full_scan(bytes_.data() + item.offset, static_cast<std::size_t>(v.numel), v.dtype).nan == 0) return true;
  }
  return false;
}

void BufferSnapshot::restore() noexcept {
  for (Item& item : items_) {
    const auto tensor = item.tensor.lock();
    observe::TensorView v;
    if (!tensor || !observe::view_of(*tensor, &v) || static_cast<std::size_t>(v.end - v.begin) != item.size_bytes) continue;
    std::memcpy(const_cast<char*>(v.data), bytes_.data() + item.offset, item.size_bytes);
  }
}

}  // namespace finitude::bindings
