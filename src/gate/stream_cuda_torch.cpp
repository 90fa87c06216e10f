// Two sides meet here: the program's thread with the GIL (prepare, begin_backward, used), and backward's threads
// without it (written). All state of an AheadReader is behind one lock. What may free memory or run Python code is
// moved into a local vector (`gone`) that is destroyed after the lock is released: a destructor may take the GIL,
// whose holder may wait for the lock.
#include "gate/stream_cuda_torch.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "gate/gate_parts_torch.h"
#include "gate/gradients_torch.h"
#include "gate/param_groups_torch.h"
#include "pyhost/is_tensor_torch.h"

namespace finitude::bindings {
namespace {

// One lock for all readers. Held by backward's threads without the GIL and by the program's with it; nothing that
// takes the GIL is done under it. Never destroyed, since backward's threads outlive main.
std::mutex& lock_of_streams() {
  static auto* mutex = new std::mutex();
  return *mutex;
}

struct Streams {
  std::vector<std::shared_ptr<AheadReader>> active;  // in the backward under way
  std::atomic<bool> any = false;
  at::CallbackHandle observer = at::INVALID_CALLBACK_HANDLE;
};

Streams& streams() {
  static auto* all = new Streams();  // backward's threads outlive main
  return *all;
}

// The observer has no state per node.
std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction&) { return nullptr; }

// An AccumulateGrad node has returned, its tensor's hooks included; those that hang on the node itself (DDP's) come
// after this.
void on_end(const at::RecordFunction& fn, at::ObserverContext*) {
  // Most nodes end here. These have the largest sequence number, so that the engine runs them as soon as it can.
  if (fn.seqNr() != -1 || !streams().any.load(std::memory_order_acquire)) return;
  try {
    const auto node = torch::autograd::get_current_node();
    const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node.get());
    // A hook of the tensor's may have written the gradient on a stream of its own, which nothing here comes after.
    if (leaf == nullptr || !leaf->variable.defined() || leaf->tensor_post_acc_grad_hooks() != nullptr) return;
    const auto* meta = torch::autograd::impl::get_autograd_meta(leaf->variable);
    if (meta == nullptr || !meta->grad_.defined()) return;
    std::vector<std::shared_ptr<AheadReader>> active;
    {
      const std::lock_guard lock(lock_of_streams());
      active = streams().active;
    }
    // `active` is a copy: the lock is free again, and the readers live until the call is over.
    for (const auto& reader : active) reader->written(leaf->variable, meta->grad_);
  } catch (const std::exception&) {  // left to the step
  }
}

// A version speaks for a gradient only if the gradient is all of its memory. A bucket of DDP's or a flat buffer is
// written as a whole, which leaves the version of a tensor that is a part of it as it was.
bool is_whole(const at::Tensor& gradient, const finitude_cuda_tensor& stretch) {
  if (stretch.numel == 0 || stretch.dtype == static_cast<std::uint32_t>(sense::DType::kOther) || gradient.is_sparse())
    return false;
  const c10::StorageImpl& storage = *gradient.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  return storage.data_ptr().get() == stretch.data && storage.nbytes() == stretch.numel * gradient.itemsize();
}

// What has to be the same at the step for an earlier read to count. The pointers are compared only.
decide::GradientId id_of(const at::Tensor& gradient, const finitude_cuda_tensor& stretch) {
  const c10::TensorImpl& impl = *gradient.unsafeGetTensorImpl();
  return {&impl, impl.unsafe_storage().unsafeGetStorageImpl(), stretch.data, stretch.numel * gradient.itemsize(),
          version_of(impl)};
}

}  // namespace

// Runs once per step, after its scan, and returns after the first block if nothing has grown. The scan has taken the
// results of this window, so growing loses nothing.
void AheadReader::prepare(PyObject* optimizer, std::uint32_t parameters, std::uint64_t bytes, std::uint64_t largest) {
  Storages gone;
  std::unordered_map<const c10::TensorImpl*, std::uint32_t> index_of;
  {
    const std::lock_guard lock(lock_of_streams());
    if (device_settings().api.passed(list_) == FINITUDE_CUDA_OK) gone.swap(orphans_);
    if (parameters <= stream_.room() && bytes <= bytes_ && largest <= largest_) return;
  }
  for_each_parameter(optimizer,
                     [&](std::uint32_t index, PyObject* p) {  // may run Python code, which may wait for another thread
                       if (is_tensor_object(p)) index_of.emplace(THPVariable_Unpack(p).unsafeGetTensorImpl(), index);
                     });
  const std::lock_guard lock(lock_of_streams());
  if (list_ == nullptr || given_up_) return;
  const std::uint64_t asked = device_settings().batch_bytes, all = std::max(bytes, bytes_),
                      one = std::max(largest, largest_);
  const std::uint64_t batch = asked != 0 ? asked : decide::batch_bytes_of(all);
  const OnDevice on(device_);
  stream_.reserve(0, batch);  // what was read ahead may be gone
  if (device_settings().api.reserve(list_, parameters, batch + one) != FINITUDE_CUDA_OK) {
    given_up_ = true;  // no memory for it: to ask again in every step would cost more than there is to gain
    return;
  }
  bytes_ = all;
  largest_ = one;
  index_of_ = std::move(index_of);
  ones_.resize(parameters);
  call_.reserve(decide::GradientStream::kMostTensors);
  stream_.reserve(parameters, batch);
}

// `last`: this backward is expected to be the last of its window. Others accumulate: what they leave is not final.
void AheadReader::begin_backward(bool last) {
  Storages gone;
  const std::lock_guard lock(lock_of_streams());
  if (!orphans_.empty() && device_settings().api.passed(list_) == FINITUDE_CUDA_OK) gone.swap(orphans_);
  stream_.begin_backward(last && list_ != nullptr && !given_up_);
}

bool AheadReader::is_active() {
  const std::lock_guard lock(lock_of_streams());
  return stream_.is_active();
}

// Notes the gradient. The weak reference keeps the address of the storage from being reused, without holding device
// memory.
void AheadReader::written(const at::Tensor& parameter, const at::Tensor& gradient) {
  Storages gone;
  finitude_cuda_tensor stretch;
  if (gradient.device() != device_ || !stretch_of(gradient, &stretch) || !is_whole(gradient, stretch)) return;
  const decide::Lane lane = current_stream(device_);
  const std::lock_guard lock(lock_of_streams());
  const auto found = index_of_.find(parameter.unsafeGetTensorImpl());
  if (found == index_of_.end() || found->second >= ones_.size() || !stream_.is_active()) return;
  if (stretch.numel * gradient.itemsize() > largest_) return;  // there is no room for it yet
  One& one = ones_[found->second];
  one.stretch = stretch;
  one.storage = gradient.unsafeGetTensorImpl()->unsafe_storage().getWeakStorageImpl();
  stream_.written(found->second, id_of(gradient, stretch), lane);
  gone.swap(done_);
}

void AheadReader::end_backward() noexcept {
  Storages gone;
  // Null, the legacy stream, if torch does not give the handle of the current one.
  void* caller = nullptr;
  try {
    caller = current_stream(device_);
  } catch (const std::exception&) {
  }
  const std::lock_guard lock(lock_of_streams());
  stream_.end_backward(caller);
  gone.swap(done_);
}

// Was this gradient read ahead, and not written since? Then the step takes that result.
bool AheadReader::stands(std::uint32_t gradient, const at::Tensor& tensor, const finitude_cuda_tensor& stretch) {
  if (!is_whole(tensor, stretch)) return false;
  const std::lock_guard lock(lock_of_streams());
  return stream_.stands(gradient, id_of(tensor, stretch));
}

void AheadReader::used(std::uint32_t gradient) {
  const std::lock_guard lock(lock_of_streams());
  stream_.used(gradient);
}

void AheadReader::end_window() {
  const std::lock_guard lock(lock_of_streams());
  stream_.end_window();
}

// Afterwards `read` and `join` do nothing, whichever thread still holds this reader.
void AheadReader::retire() noexcept {
  const std::lock_guard lock(lock_of_streams());
  stream_.begin_backward(false);
  list_ = nullptr;
}

// Called under the lock. A storage that has died or was given other memory is not read.
bool AheadReader::hold(std::uint32_t gradient) {
  One& one = ones_[gradient];
  auto storage = one.storage ? one.storage->lock() : c10::intrusive_ptr<c10::StorageImpl>();
  if (!storage) return false;
  const bool same = storage->data_ptr().get() == one.stretch.data;  // not emptied, nor given other memory
  (same ? one.held : done_.emplace_back()) = std::move(storage);
  return same;
}

// Called under the lock. `call_` has its capacity from prepare(): no allocation on a thread of backward.
bool AheadReader::read(decide::Lane lane, const std::uint32_t* gradients, std::uint32_t count) {
  if (list_ == nullptr) return false;
  call_.clear();
  for (std::uint32_t i = 0; i < count; ++i) {
    call_.push_back(ones_[gradients[i]].stretch);
    call_.back().ahead = gradients[i] + 1;
  }
  return device_settings().api.ahead(list_, call_.data(), count, const_cast<void*>(lane)) == FINITUDE_CUDA_OK;
}

void AheadReader::join(decide::Lane lane) {
  if (list_ != nullptr) device_settings().api.join(list_, const_cast<void*>(lane));
}

// Called under the lock, so nothing is freed here. If this is the last reference, the program has let go of the
// storage while it was read: it is kept until the device has passed all reads.
void AheadReader::let_go(const std::uint32_t* gradients, std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) {
    auto& held = ones_[gradients[i]].held;
    if (held) (held.use_count() == 1 ? orphans_ : done_).push_back(std::move(held));
    held.reset();
  }
}

namespace {

// `any` goes first: nodes that end from now on return at once. A node that has copied `active` before may still call
// written(), which a reader ignores once its backward has ended.
void end_streams() noexcept {
  Streams& all = streams();
  if (!all.any.load(std::memory_order_acquire)) return;
  std::vector<std::shared_ptr<AheadReader>> active;
  {
    const std::lock_guard lock(lock_of_streams());
    all.any.store(false, std::memory_order_release);
    active.swap(all.active);
  }
  for (const auto& reader : active) reader->end_backward();
}

}  // namespace

// Allocates a vector of a few pointers, and only where gradients are read ahead.
StreamedBackward::StreamedBackward(bool on, bool may_read) noexcept
    : on_(on && streams().observer != at::INVALID_CALLBACK_HANDLE) {
  if (!on_) return;
  Streams& all = streams();
  try {
    std::vector<std::shared_ptr<AheadReader>> active;
    for (const auto& entry : live().optimizers) {
      if (!entry->device || !entry->device->reader || !is_alive(*entry)) continue;
      const bool last =
          may_read && !entry->is_inner && entry->device->in_order && entry->backwards + 1 == entry->predicted;
      entry->device->reader->begin_backward(last);
      if (entry->device->reader->is_active()) active.push_back(entry->device->reader);
    }
    const std::lock_guard lock(lock_of_streams());
    all.active = std::move(active);
    all.any.store(!all.active.empty(), std::memory_order_release);
  } catch (const std::exception&) {
    all.any.store(false, std::memory_order_release);
  }
}

StreamedBackward::~StreamedBackward() {
  if (on_) end_streams();
}

void end_stream_window(OptimizerEntry& entry) {
  if (entry.device && entry.device->reader) entry.device->reader->end_window();
}

// The observer is global to torch and costs a call per node of every backward, so it is added only once a reader
// exists.
void prepare_stream(OptimizerEntry& entry) {
  DeviceGate& gate = *entry.device;
  const DeviceSettings& settings = device_settings();
  if (gate.parts.size() != 1 || !gate.in_order ||
      !decide::wants_streaming(settings.streaming, gate.bytes, settings.several_ranks)) {
    return;
  }
  if (!gate.reader) gate.reader = std::make_shared<AheadReader>(gate.parts[0].device, gate.parts[0].list);
  gate.reader->prepare(entry.self, static_cast<std::uint32_t>(entry.marks.size()), gate.bytes, gate.largest);
  Streams& all = streams();
  if (all.observer != at::INVALID_CALLBACK_HANDLE) return;
  all.observer = at::addGlobalCallback(
      at::RecordFunctionCallback(&on_start, &on_end).scopes({at::RecordScope::BACKWARD_FUNCTION}));
}

void stop_streams() noexcept {
  Streams& all = streams();
  end_streams();
  if (all.observer == at::INVALID_CALLBACK_HANDLE) return;
  at::removeCallback(all.observer);
  all.observer = at::INVALID_CALLBACK_HANDLE;
}

}  // namespace finitude::bindings
