// Gradients on a device, read while backward is still making others: an observer of autograd's AccumulateGrad nodes
// collects them, and decide/gradient_stream.h says which are read when. The step reads only what was not, or what
// changed since.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "decide/gradient_stream.h"
#include "finitude/cuda_scan.h"

namespace finitude::bindings {

struct OptimizerEntry;

// Of one optimizer whose gradients lie on one device.
//
// Memory. PyTorch's caching allocator hands a block out again on the host's clock: at once, to whatever is allocated
// next on the stream that the block was allocated on; kernels on that one stream come in the right order by themselves.
// Another stream, as the one that reads ahead, is not known to it. Storage::record_stream would inform it, and is not
// used: the allocator then keeps each block that is freed until an event on our stream has passed, so that a script
// that sets its gradients to None while the host is a step ahead would need a second set of gradients. Instead:
//  - From a read's launch until the stream that wrote the gradient has been made to wait for it, a strong reference
//  keeps the storage (not
//    the tensor: who accumulates asks for references to that). That is one batch for each of four streams at the most,
//    within a backward.
//  - A storage that is let go of afterwards, by anybody, goes to a stream that is behind ours. The block belongs to the
//  stream that
//    wrote the gradient, or was allocated on another one; then the engine has called record_stream on it for the
//    writing stream when the gradient crossed over, and the allocator waits for that stream; or the script itself
//    allocated the gradient, and orders the two streams after backward by itself: by the stream that called backward,
//    which waits for us as well.
//  - Where the program has let go of a storage before that, it is kept until the device is seen to be past all reads
//  (`orphans`).
// What is left: a storage that is emptied in place (resize_(0), as FSDP does) while it is being read; a script that
// orders a third stream behind backward's from inside of a hook and lets go of the gradient on that one after backward.
// The read then sees memory that is used for something else: its result is not asked for, as the gradient is gone, and
// it writes nothing.
class AheadReader final : decide::ReadAhead {
 public:
  AheadReader(c10::Device device, finitude_cuda_list* list) : device_(device), list_(list) {}
  // Let go of when the list has been closed, which waits for all reads.
  ~AheadReader() = default;

  c10::Device device() const noexcept { return device_; }
  // Makes room for these gradients, and learns whose they are. GIL held, no backward under way. Costs a comparison
  // where nothing grew.
  void prepare(PyObject* optimizer, std::uint32_t parameters, std::uint64_t bytes, std::uint64_t largest);
  void begin_backward(bool last);
  bool is_active();
  // By a thread of backward's, without the GIL, its current stream being the one that wrote the gradient.
  void written(const at::Tensor& parameter, const at::Tensor& gradient);
  void end_backward() noexcept;
  bool stands(std::uint32_t gradient, const at::Tensor& tensor, const finitude_cuda_tensor& stretch);
  void used(std::uint32_t gradient);
  void end_window();
  // The list is about to be closed.
  void retire() noexcept;

 private:
  using Storages = std::vector<c10::intrusive_ptr<c10::StorageImpl>>;
  struct One {
    finitude_cuda_tensor stretch{};
    // Weak: keeps the address of the storage from being used for another one, and no memory of the device.
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage;
    c10::intrusive_ptr<c10::StorageImpl> held;
  };

  bool hold(std::uint32_t gradient) override;
  bool read(decide::Lane lane, const std::uint32_t* gradients, std::uint32_t count) override;
  void join(decide::Lane lane) override;
  void let_go(const std::uint32_t* gradients, std::uint32_t count) override;
  void forget_orphans();

  const c10::Device device_;
  finitude_cuda_list* list_;
  decide::GradientStream stream_{*this};
  std::uint64_t bytes_ = 0, largest_ = 0;
  bool given_up_ = false;
  std::unordered_map<const c10::TensorImpl*, std::uint32_t> index_of_;
  std::vector<One> ones_;
  std::vector<finitude_cuda_tensor> call_;
  Storages done_;     // to be let go of when no lock is held: that may run anything
  Storages orphans_;  // the program has let go of them
};

// Around an outermost backward, GIL held; the end also where it failed. `on`: there is a device that is watched.
// `may_read`: not where what backward makes is judged at once, or for a second time.
class StreamedBackward {
 public:
  StreamedBackward(bool on, bool may_read) noexcept;
  ~StreamedBackward();
  StreamedBackward(const StreamedBackward&) = delete;
  StreamedBackward& operator=(const StreamedBackward&) = delete;

 private:
  bool on_;
};
// The window of this optimizer ends.
void end_stream_window(OptimizerEntry& entry);
// After a step's gradients were scanned: is the next window's read worth being hidden?
void prepare_stream(OptimizerEntry& entry);
// Takes the observer out of autograd.
void stop_streams() noexcept;

}  // namespace finitude::bindings
