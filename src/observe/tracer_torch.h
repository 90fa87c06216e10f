// The armed observer: while on, every operator with what it read and wrote goes into a record::Trace.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "observe/call_copy_torch.h"
#include "observe/tensor_view_torch.h"
#include "record/trace.h"

namespace finitude::observe {

// Where in the user's code are we? Implemented by the bindings (takes the GIL itself if need be).
using StackFn = bool (*)(std::vector<record::Frame>* frames, std::string* module);

// One per process, leaked on purpose: callbacks may outlive main. Costs nothing while off (no callback is installed).
// Callbacks hold no tensor reference, never throw and never wait for the GIL while holding the tracer's lock.
class Tracer {
 public:
  static Tracer& get();

  void start(StackFn stack);
  void stop();                       // the trace stays until clear()
  void clear();
  bool on() const { return on_; }

  // The values of the step as it begins (their memory is scanned later, when an op reads it).
  void name_storage(const c10::TensorImpl& tensor, record::Origin origin, const std::string& name);
  // Batches handed over by a loader: the line that takes them in is the current one.
  void name_batch(const c10::TensorImpl& tensor, const std::string& name);
  void add_sink(const std::string& kind, const std::string& name, const c10::TensorImpl& tensor, std::uint32_t micro_batch);

  void set_micro_batch(std::uint32_t index) { micro_batch_ = index; }
  // Ops of this thread belong to `phase` until the guard ends.
  struct PhaseGuard {
    explicit PhaseGuard(record::Phase phase);
    ~PhaseGuard();
    record::Phase before;
  };
  static record::Phase& thread_phase();
  // The line of loss.backward(): ops of C++ nodes run below it and are not attributed to it.
  void set_backward_stack();

  record::Trace take_trace();        // moves it out; ids stay valid for captured()
  const CapturedCall* captured(record::OpId op) const;
  std::size_t num_ops() const;

 private:
  struct Context;
  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn);
  static void on_end(const at::RecordFunction& fn, at::ObserverContext* context);
  std::unique_ptr<at::ObserverContext> start_op(const at::RecordFunction& fn);
  void end_op(const at::RecordFunction& fn, Context* context);
  record::TensorUse use_of(const c10::TensorImpl& impl, bool scan);
  record::StorageId storage_id(c10::StorageImpl* storage);
  std::uint32_t intern_stack();

  mutable std::mutex mutex_;
  record::Trace trace_;
  std::unordered_map<c10::StorageImpl*, record::StorageId> storages_;
  std::unordered_map<std::string, std::uint32_t> stacks_;
  std::unordered_map<std::uint64_t, record::OpId> forward_of_;  // (thread, sequence number) of a node -> op that made it
  std::unordered_map<record::OpId, std::shared_ptr<CapturedCall>> captured_;
  std::size_t captured_bytes_ = 0;
  StackFn stack_fn_ = nullptr;
  std::uint32_t backward_stack_ = record::kNone;
  std::uint32_t micro_batch_ = 0, ends_ = 0;
  std::uint64_t generation_ = 0;
  at::CallbackHandle handle_ = 0;
  bool on_ = false;
};

}  // namespace finitude::observe
