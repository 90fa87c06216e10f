// The armed observer: while on, every operator with what it read and wrote goes into a record::EventSink.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "observe/call_copy_torch.h"
#include "observe/known_health.h"
#include "observe/tensor_view_torch.h"
#include "record/event_sink.h"
#include "record/trace.h"

namespace finitude::observe {

// Where in the user's code are we? Implemented by the bindings (takes the GIL itself if need be).
struct Places {
  // Equal bytes, within one trace: the same place. False: no place can be reported.
  bool (*key)(std::string* bytes);
  bool (*fill_stack)(record::Stack* stack);  // which is empty
  // Nothing calls set_backward_stack(): where backward was called from is where its first node runs.
  bool nodes_report_backward = false;
};

// One per process, leaked on purpose: callbacks may outlive main. Costs nothing while off (no callback is installed).
// Callbacks hold no tensor reference, never throw, and hold no lock while they scan memory or wait for the GIL.
class Tracer {
 public:
  static Tracer& get();

  // What a trace may take down; what comes after is missing from it.
  struct Bound {
    std::uint64_t ops = std::uint64_t{1} << 62, read_bytes = std::uint64_t{1} << 62;
  };
  // sketch: no value is looked at, but for what host code made; a replay of the tape of the step may fill them in. The
  // places outlive the tracer.
  void start(const Places* places, bool sketch, const Bound& bound);
  void start(const Places* places, bool sketch = false) { start(places, sketch, Bound()); }
  void stop();  // the trace stays until clear()
  // Nothing is traced from here on until it is set back; what has begun may still end.
  void pause(bool on) { paused_ = on; }
  bool sketches() const { return sketch_; }  // the trace at hand, and those to come until the next start()
  void clear();
  bool on() const { return sink_.on(); }
  std::size_t num_ops() const { return sink_.num_ops(); }
  std::uint64_t number() const { return sink_.generation(); }  // of the trace at hand
  bool is_whole() const { return sink_.dropped() == 0; }       // nothing is missing from the trace at hand

  // The values of the step as it begins (their memory is scanned later, when an op reads it).
  void name_storage(const c10::TensorImpl& tensor, record::Origin origin, const std::string& name);
  // Batches handed over by a loader: the line that takes them in is the current one.
  void name_batch(const c10::TensorImpl& tensor, const std::string& name);
  void add_sink(const std::string& kind, const std::string& name, const c10::TensorImpl& tensor,
                std::uint32_t micro_batch);

  void set_micro_batch(std::uint32_t index) { micro_batch_.store(index, std::memory_order_relaxed); }
  // Ops of this thread belong to `phase` until the guard ends.
  struct PhaseGuard {
    explicit PhaseGuard(record::Phase phase);
    ~PhaseGuard();
    record::Phase before;
  };
  static record::Phase& thread_phase();
  // The op that this thread began last and has not ended; kNone where none was traced. For observers that were
  // installed after this one.
  static record::OpId open_op();
  // The line of loss.backward(): ops of C++ nodes run below it and are not attributed to it.
  void set_backward_stack();

  record::Trace take_trace() { return sink_.take(); }  // moves it out; ids stay valid for captured()
  const CapturedCall* captured(record::OpId op) const;
  // The storage of the present trace that is this memory; kNone: it was not seen.
  record::StorageId storage_of(c10::StorageImpl* memory) const { return sink_.storage_of(memory); }
  // Calls that were captured under one trace belong to ops of another from here on; the others are let go.
  void move_captured(const std::unordered_map<record::OpId, record::OpId>& ops);

 private:
  struct Context;   // of an operator between its begin and its end
  class Beginning;  // what is done at its begin
  class Ending;     // and at its end
  Tracer();
  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn);
  static void on_end(const at::RecordFunction& fn, at::ObserverContext* context);
  std::unique_ptr<at::ObserverContext> start_op(const at::RecordFunction& fn);
  void end_op(const at::RecordFunction& fn, Context* context);
  bool may_keep_integers() const;
  bool keep_call(record::OpId op, std::shared_ptr<CapturedCall> call, std::size_t size_bytes);
  bool is_beyond_bound() const;
  std::uint32_t intern_stack();

  record::EventSink sink_;
  KnownHealth known_;
  std::atomic<const Places*> places_ = nullptr;
  std::atomic<bool> nodes_report_backward_ = false, sketch_ = false, paused_ = false;
  std::atomic<bool> others_write_ =
      false;  // values of other ranks come into memory unseen, also into buffers that no operator is given
  std::atomic<std::uint64_t> until_ops_ = 0, until_read_bytes_ = 0;  // of effort()
  std::atomic<std::uint32_t> backward_stack_ = record::kNone, micro_batch_ = 0;
  at::CallbackHandle handle_ = 0;  // of start() and stop(), which one thread calls

  mutable std::mutex captured_mutex_;  // guards the two below
  std::unordered_map<record::OpId, std::shared_ptr<CapturedCall>> captured_;
  std::size_t captured_bytes_ = 0;
};

}  // namespace finitude::observe
